# SPDX-License-Identifier: Apache-2.0
"""What is supported: frameworks, their tags and wheels, and the CI matrix of them."""
