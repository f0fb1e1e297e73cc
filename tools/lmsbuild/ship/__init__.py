# SPDX-License-Identifier: Apache-2.0
"""The way from a tag to what is shipped of it, stage by stage."""
