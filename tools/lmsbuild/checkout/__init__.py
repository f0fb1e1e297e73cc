# SPDX-License-Identifier: Apache-2.0
"""Sources of a framework, and a series put on a checkout and taken back from it."""
