# SPDX-License-Identifier: Apache-2.0
"""What a user asks for: the three numbers, the ways to wait, and what is to be left alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from tensorflow_large_model_support.graph import Graph, Op

ASYNCHRONOUS, OUT, IN, BOTH = range(4)  # sync_mode: what computing waits for, as bits


@dataclass(frozen=True)
class Settings:
    """The numbers, none negative any more."""

    threshold: int
    groupby: int = 0
    ahead: int = 1
    sync_mode: int = ASYNCHRONOUS
    serialized: frozenset[int] = frozenset()  # levels

    @property
    def waits_out(self) -> bool:
        return self.sync_mode in (OUT, BOTH)

    @property
    def described(self) -> str:
        return (
            f"swapout_threshold: {self.threshold}, swapin_ahead: {self.ahead}, "
            f"swapin_groupby: {self.groupby}, sync_mode: {self.sync_mode}"
        )

    @property
    def waits_in(self) -> bool:
        return self.sync_mode in (IN, BOTH)


@dataclass
class Side:
    """The scopes and types of ops at one end of an edge; `incl_` is for all ops while empty."""

    excl_scopes: set[str] = field(default_factory=set)
    incl_scopes: set[str] = field(default_factory=set)
    excl_types: set[str] = field(default_factory=set)
    incl_types: set[str] = field(default_factory=set)

    def takes(self) -> Callable[[Op], bool]:
        excluded, included = _within(self.excl_scopes), _within(self.incl_scopes)

        def taken(op: Op) -> bool:
            if op.type in self.excl_types or excluded(op.name):
                return False
            if not (self.incl_types or self.incl_scopes):
                return True
            return op.type in self.incl_types or included(op.name)

        return taken

    def check(self, graph: Graph, called: str) -> None:
        """Raises ValueError for a scope or type that no op of the graph has; `called` names the
        option, with places for excl or incl, and for types or scopes."""
        types = {op.type for op in graph.ops}
        names = [op.name for op in graph.ops]
        for option in ("excl", "incl"):
            for kind in sorted(getattr(self, f"{option}_types") - types):
                raise ValueError(
                    f"{called.format(option, 'types')} names {kind!r}, which no operation of the "
                    "graph is; correct it or leave it out"
                )
            for scope in sorted(getattr(self, f"{option}_scopes")):
                if not any(map(_within([scope]), names)):
                    raise ValueError(
                        f"{called.format(option, 'scopes')} names {scope!r}, in which the graph "
                        "has no operation; correct it or leave it out"
                    )


def _within(scopes: Collection[str]) -> Callable[[str], bool]:
    stems = tuple(f"{scope.rstrip('/')}/" for scope in scopes)
    return lambda name: f"{name}/".startswith(stems) if stems else False


def parse_levels(name: str, value: Any) -> list[int | slice]:
    """What names levels, parsed. Raises ValueError for what does not."""
    if not isinstance(value, Collection) or isinstance(value, str | bytes):
        raise ValueError(f"{name} is {value!r}, which is no list; give one, as [1, '3:5', 7]")
    return [_level(name, part) for part in value]


def _level(name: str, part: Any) -> int | slice:
    if isinstance(part, Integral) and not isinstance(part, bool):
        return int(part)
    try:
        ends = [int(end) if end.strip() else None for end in part.split(":")]
        if 2 <= len(ends) <= 3 and ends[2:] != [0]:
            return slice(*ends)
    except (AttributeError, ValueError):
        pass
    raise ValueError(
        f"{name} has {part!r}, which is no level; give levels and slices of them, as [1, '3:5', 7]"
    )


def serialized_levels(
    serialization: Sequence[int | slice], by_size: float, graph: Graph
) -> frozenset[int]:
    """The levels that `serialization` names, and those that make more than `by_size` GiB."""
    levels: set[int] = set()
    for part in serialization:
        if isinstance(part, slice):
            levels.update(range(graph.depth)[part])
        else:
            levels.add(part if part >= 0 else graph.depth + part)
    if by_size > 0:
        made = [0] * graph.depth
        for size, level in zip(graph.sizes(), graph.level, strict=True):
            made[level] += size
        levels.update(level for level, size in enumerate(made) if size > by_size * (1 << 30))
    return frozenset(level for level in levels if 0 <= level < graph.depth)
