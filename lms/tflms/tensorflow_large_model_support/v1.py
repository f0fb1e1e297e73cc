# SPDX-License-Identifier: Apache-2.0
"""The interface of TFLMS v1, as thin names over today's."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tensorflow as tf

from tensorflow_large_model_support import lms


class LMS(lms.LMS):
    """Swaps what ops of the backward phase, those in `optimizer_scopes`, read of other ops.

    `starting_scope` and `starting_op_names` said where a search began, `ctrld_strategy` how it
    chose an op to wait for: both are accepted, and there is one way now.
    """

    def __init__(
        self,
        optimizer_scopes: Collection[str] | None = None,
        starting_scope: str | None = None,
        starting_op_names: Collection[str] | None = None,
        excl_scopes: Collection[str] = (),
        incl_scopes: Collection[str] = (),
        excl_types: Collection[str] = (),
        incl_types: Collection[str] = (),
        n_tensors: int = -1,
        lb: int = 1,
        ub: int = 10000,
        fuse_swapins: bool = False,
        ctrld_strategy: str = "chain_rule",
        swap_branches: bool = False,
        branch_threshold: int = 0,
        debug: bool = False,
        debug_level: int = 1,
        cpu_device: str = "/cpu:0",
        graph: tf.Graph | None = None,
    ) -> None:
        if ctrld_strategy not in ("chain_rule", "direct_order"):
            raise ValueError(
                f"ctrld_strategy is {ctrld_strategy!r}, which is none of chain_rule, direct_order"
            )
        for name, number in {"n_tensors": n_tensors, "lb": lb, "ub": ub}.items():
            if isinstance(number, bool) or not isinstance(number, int):
                raise ValueError(f"{name} is {number!r}, which is no integer; give one")
        super().__init__(
            swapout_threshold=max(branch_threshold, 1) if swap_branches else 1,
            swapin_groupby=max(ub, 0) if fuse_swapins else 0,
            swapin_ahead=max(min(lb, ub), 0),
            debug=debug,
            debug_level=debug_level,
            cpu_device=cpu_device,
        )
        self._graph = graph
        self.most_tensors = None if n_tensors < 0 else n_tensors
        self.excl_output_by_scopes, self.incl_output_by_scopes = set(excl_scopes), set(incl_scopes)
        self.excl_output_by_types, self.incl_output_by_types = set(excl_types), set(incl_types)
        if optimizer_scopes and not swap_branches:
            self.excl_output_by_scopes |= set(optimizer_scopes)
            self.incl_input_by_scopes = set(optimizer_scopes)

    def run(self, graph: tf.Graph | None = None, keras: bool = False) -> None:
        super().run(graph or self._graph, keras)


class LMSSessionRunHook(LMS):
    """For `hooks=` of a session or an Estimator."""

    def __init__(self, optimizer_scopes: Collection[str] | None = None, **options: Any) -> None:
        super().__init__(optimizer_scopes, **options)


class LMSKerasCallback(LMS):
    """For `callbacks=` of `fit`; `optimizer_scopes_override` is the name it had there."""

    def __init__(
        self, optimizer_scopes_override: Collection[str] | None = None, **options: Any
    ) -> None:
        super().__init__(optimizer_scopes_override, **options)
