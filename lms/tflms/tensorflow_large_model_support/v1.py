# SPDX-License-Identifier: Apache-2.0
"""The interface of TFLMS v1, as thin names over today's."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

import tensorflow as tf

from tensorflow_large_model_support import checks, lms
from tensorflow_large_model_support.choice import Side
from tensorflow_large_model_support.graph import Graph
from tensorflow_large_model_support.plan import Planner

# What the gradients of a model are made in where the optimizer has no scope of its own.
_GRADIENTS = ("gradients", "gradient_tape")


class LMS(lms.LMS):
    """Swaps what ops of the backward phase, those in `optimizer_scopes`, read of other ops.

    With `starting_scope` or `starting_op_names`, only what is made from the ops there on.
    `ctrld_strategy` said how an op to wait for is chosen: it is accepted, and there is one way now.
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
        numbers = {"n_tensors": n_tensors, "lb": lb, "ub": ub, "branch_threshold": branch_threshold}
        for name, number in numbers.items():
            checks.integer(name, number)
        if lb > ub:
            raise ValueError(f"lb is {lb}, which is above ub, {ub}; give a smaller one")
        if not (starting_scope is None or isinstance(starting_scope, str)):
            raise ValueError(f"starting_scope is {starting_scope!r}, which is no name of a scope")
        if not (graph is None or isinstance(graph, tf.Graph)):
            raise ValueError(f"graph is {graph!r}, which is no graph of TensorFlow's")
        super().__init__(
            swapout_threshold=max(branch_threshold, 1) if swap_branches else 1,
            swapin_groupby=max(ub, 0) if fuse_swapins else 0,
            swapin_ahead=max(lb, 0),
            debug=debug,
            debug_level=debug_level,
            cpu_device=cpu_device,
        )
        self._graph = graph
        self._branches = swap_branches
        self._optimizer_scopes = checks.names("optimizer_scopes", optimizer_scopes or ())
        self._starting_ops = checks.names("starting_op_names", starting_op_names or ())
        self._starting_scope = starting_scope
        self.most_tensors = None if n_tensors < 0 else n_tensors
        side = self._sides["output"]
        side.excl_scopes = checks.names("excl_scopes", excl_scopes)
        side.incl_scopes = checks.names("incl_scopes", incl_scopes)
        side.excl_types = checks.names("excl_types", excl_types)
        side.incl_types = checks.names("incl_types", incl_types)

    def run(self, graph: tf.Graph | None = None, keras: bool = False) -> None:
        super().run(graph or self._graph, keras)

    def _planner(self, graph: Graph, whole: bool) -> Planner:
        """As that of the options, for what the backward phase reads of the forward phase."""
        backward = Side(incl_scopes=self._backward(graph))
        reads = backward.takes()
        outputs, starts = self._sides["output"].takes(), self._started(graph)
        forward_only = bool(backward.incl_scopes) and not self._branches
        return Planner(
            graph,
            lambda op: outputs(op) and op.name in starts and not (forward_only and reads(op)),
            reads if forward_only else lambda op: True,
            whole=whole,
        )

    def _check_names(self, graph: Graph) -> None:
        self._sides["output"].check(graph, "{}_{}")
        Side(incl_scopes=self._optimizer_scopes).check(graph, "optimizer_scopes")
        scope = self._starting_scope
        Side(incl_scopes={scope} if scope else set()).check(graph, "starting_scope")
        unknown = sorted(self._starting_ops - {op.name for op in graph.ops})
        if unknown:
            raise ValueError(
                f"starting_op_names names {unknown[0]!r}, which is no operation of the graph; "
                "correct it or leave it out"
            )

    def _backward(self, graph: Graph) -> set[str]:
        return self._optimizer_scopes

    def _started(self, graph: Graph) -> Collection[str]:
        """The ops that are made from those where swapping is to start."""
        if not (self._starting_scope or self._starting_ops):
            return {op.name for op in graph.ops}
        scopes = {self._starting_scope} if self._starting_scope else set()
        inside = Side(incl_scopes=scopes).takes() if scopes else lambda op: False
        reached: set[int] = set()
        for number in graph.order:
            op = graph.ops[number]
            if (
                inside(op)
                or op.name in self._starting_ops
                or not reached.isdisjoint(tensor.op for tensor in op.inputs)
            ):
                reached.add(number)
        return {graph.ops[number].name for number in reached}


class LMSSessionRunHook(LMS):
    """For `hooks=` of a session or an Estimator."""


class LMSKerasCallback(LMS):
    """For `callbacks=` of `fit`. The scopes of the optimizer are found, but where they are given as
    `optimizer_scopes_override`, as they were called there."""

    def __init__(
        self, optimizer_scopes_override: Collection[str] | None = None, **options: Any
    ) -> None:
        super().__init__(optimizer_scopes_override, **options)

    def _backward(self, graph: Graph) -> set[str]:
        if self._optimizer_scopes:
            return self._optimizer_scopes
        found = set()
        for op in graph.ops:
            parts = op.name.split("/")
            places = [parts.index(name) for name in _GRADIENTS if name in parts[:-1]]
            if places:
                found.add("/".join(parts[: min(places) + 1]))
        return found


_OPTIONS = frozenset(inspect.signature(LMS.__init__).parameters)
_ONLY_HERE = _OPTIONS - frozenset(inspect.signature(lms.LMS.__init__).parameters)


def is_meant(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    """Whether a call of `LMS` is one of TFLMS v1: its first argument were the optimizer's scopes.

    Raises ValueError for what is of both.
    """
    ours = sorted(_ONLY_HERE & named.keys())
    by_place = bool(arguments) and isinstance(arguments[0], Collection)
    if not ours and (not by_place or isinstance(arguments[0], str)):
        return False
    theirs = sorted(named.keys() - _OPTIONS)
    if theirs:
        what = ours[0] if ours else "optimizer_scopes"
        raise ValueError(
            f"LMS has {what}, of TFLMS v1, and {theirs[0]}, which is none of its options; give "
            "those of one version"
        )
    return True
