# SPDX-License-Identifier: Apache-2.0
"""Patch series as files: reading, writing and judging them, without a checkout."""
