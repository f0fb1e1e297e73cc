# SPDX-License-Identifier: Apache-2.0
"""The profile that a dry device has unless another is named; apart, as it is in every help text."""

PROFILE = "v100-32gb-pcie3"
