# SPDX-License-Identifier: Apache-2.0
"""Conda packages made from wheels, and channels of them."""
