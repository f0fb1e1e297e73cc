# SPDX-License-Identifier: Apache-2.0
"""Where something runs: environments, devices, images and containers."""
