# SPDX-License-Identifier: Apache-2.0
"""How checkouts, the cache and the project stand, and what can be removed."""
