# SPDX-License-Identifier: Apache-2.0
"""On the PYTHONPATH of child processes: gives them the simulated device if SIMCUDA=1 is set."""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

_here = Path(__file__).resolve().parent


def _simulate() -> None:
    package = _here.parent
    spec = importlib.util.spec_from_file_location(
        "simcuda", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["simcuda"] = module
    spec.loader.exec_module(module)
    if not any(importlib.util.find_spec(name) for name in ("torch", "tensorflow")):
        return  # a program without either has no use for a device
    try:
        module.load()
    except module.SimcudaError as error:
        sys.exit(f"simcuda: {error}")


def _next_sitecustomize() -> None:
    """This file hides the sitecustomize that Python would have found without it: run that too."""
    others = [p for p in sys.path if Path(p or ".").resolve() != _here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_next_sitecustomize()
if os.environ.get("SIMCUDA") == "1":
    _simulate()
