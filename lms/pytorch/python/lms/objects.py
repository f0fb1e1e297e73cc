# SPDX-License-Identifier: Apache-2.0
"""What the program made before there was anybody to note it."""

from __future__ import annotations

import gc
from typing import Any, List, Set


def _with_subclasses(kind: Any) -> Set[Any]:
    return {kind}.union(*map(_with_subclasses, type.__subclasses__(kind)))


def instances(kind: Any) -> List[Any]:
    """Those of a class and of its subclasses, found by what refers to the classes. gc.get_objects()
    would hold what another thread is just making, a tuple for one, and that thread would fail."""
    kinds = _with_subclasses(kind)
    return [each for each in gc.get_referrers(*kinds) if type(each) in kinds]
