# SPDX-License-Identifier: Apache-2.0
"""Apply, build and test Large Model Support patch series; every command is a library call."""

__version__ = "0.1.0"
