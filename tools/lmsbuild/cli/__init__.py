# SPDX-License-Identifier: Apache-2.0
"""What the commands share: the group, options, completion and the rendered page."""
