# SPDX-License-Identifier: Apache-2.0
"""Wheels: reading one, compiling for one, and making the overlay and the plug-in."""
