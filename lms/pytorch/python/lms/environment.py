# SPDX-License-Identifier: Apache-2.0
"""PYTORCH_LMS and LMS_DEBUG: no edit to the program."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any, Callable, Dict, Optional

from . import api, library, sizes, versions

_SIZES = ("device_limit", "host_limit", "min_size")

_asked: Optional[Dict[str, int]] = None  # the sizes in a variable that turns it on
_mistake: Optional[ValueError] = None


def parse(value: str) -> Optional[Dict[str, int]]:
    """The sizes that `value` sets, or None if it does not turn Large Model Support on.

    Raises ValueError.
    """
    value = value.strip()
    if value.lower() in ("", "0", "off", "false"):
        return None
    found: Dict[str, int] = {}
    if value.lower() not in ("1", "on", "true"):
        for item in value.split(","):
            name, separator, size = (part.strip() for part in item.partition("="))
            if not separator or name not in _SIZES:
                raise ValueError(
                    f"PYTORCH_LMS takes 1, 0, or device_limit=, host_limit= and min_size= separated"
                    f" by commas; got {item!r}"
                )
            found[name] = sizes.parse(f"{name} in PYTORCH_LMS", size)
    return found


def read() -> None:
    """Takes note of the variables. Who never uses CUDA is not told of a mistake in them."""
    global _asked, _mistake
    _asked = _mistake = None
    try:
        _asked = parse(os.environ.get("PYTORCH_LMS", ""))
        if _asked is not None:
            api.parse_debug(os.environ.get("LMS_DEBUG", ""))
    except ValueError as error:
        _asked, _mistake = None, error
        cuda: Any = sys.modules["torch.cuda"]  # torch may be being imported
        if not versions.initialized():
            cuda._lazy_init = _refusing(cuda._lazy_init)
    if _asked is not None:
        api.store(wanted=True, **_asked)


def _refusing(initialise: Callable[[], None]) -> Callable[[], None]:
    """Instead of `initialise`: what it calls itself would tell of the mistake under the stack of
    whoever imported torch."""

    @functools.wraps(initialise)
    def lazy_init() -> Any:
        if _mistake is not None:
            raise ValueError(str(_mistake))
        return initialise()

    return lazy_init


def act() -> None:
    """To be called when CUDA is initialised: does what the variable asked for, unless the program
    has asked for something else since. Raises ValueError if there is a mistake in it."""
    if _mistake is not None:
        raise _mistake
    if _asked is None:
        return
    api.settle()
    if library.enabled():
        limits = api.limits()  # the program may have set others since
        shown = "".join(f", {name} {sizes.text(limits[name] or 0)}" for name in _asked)
        print(f"PYTORCH_LMS: Large Model Support is on{shown}", file=sys.stderr)
