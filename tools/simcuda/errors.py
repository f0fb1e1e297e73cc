# SPDX-License-Identifier: Apache-2.0
"""The one exception that simcuda raises for what its user can put right."""


class SimcudaError(RuntimeError):
    """Says what is wrong, why, and what to do."""
