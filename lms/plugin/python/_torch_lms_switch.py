# SPDX-License-Identifier: Apache-2.0
"""The environment switch: with PYTORCH_LMS set, importing torch imports torch_lms after it.

Reached from torch_lms.pth at the start of every interpreter, and only when the variable is set.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any


class _Loader(importlib.abc.Loader):
    """Torch's own loader, and then torch_lms."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _Finder)]
        importlib.import_module("torch_lms")


class _Finder(importlib.abc.MetaPathFinder):
    _searching = False

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch" or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def arm() -> None:
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _Finder())
