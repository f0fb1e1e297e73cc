# SPDX-License-Identifier: Apache-2.0
"""What every other package stands on: errors, log, console, cache, git and transactions."""
