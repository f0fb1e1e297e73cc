# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs. One follows the pointers it was captured with at each replay, so what a capture uses
is exposed, also while Large Model Support is off. Before there is a library nothing can note what a
capture uses: who has such a graph is refused."""

from __future__ import annotations

import ctypes
import functools
import weakref
from typing import Any

import torch

from . import fusion, library, versions

# Blocks of 512 bytes, two for each generator. More takes no more memory up to a segment of 2 MiB;
# less would leave a graph with several generators short.
_STATE_BYTES = 4 << 10

_unnoted: Any = weakref.WeakSet()  # graphs that were captured before there was a library


def watch() -> None:
    """From now on, captures are known of."""
    graph: Any = versions.graph_class()
    if graph is None:
        return
    begin, end = graph.capture_begin, graph.capture_end

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        if not library.loaded():
            begin(self, *args, **kwargs)
            _unnoted.add(self)
            return
        room = _make_room()
        try:
            self._lms_capture = library.ops().begin_capture()  # it is over when it dies
            del room
            # A replay would follow pointers that nothing notes.
            fusion.stop("A CUDA graph cannot be captured once Large Model Support was on,")
            begin(self, *args, **kwargs)
            library.ops().capture_begun(self._lms_capture)
        except BaseException as error:
            _abandon(self)
            if versions.is_out_of_memory(error):
                _keep_for_ever(self)
            raise

    @functools.wraps(end)
    def capture_end(self: Any) -> None:
        try:
            end(self)
        except BaseException:  # of a capture that failed
            _abandon(self)
            raise
        _end(self)

    graph.capture_begin = capture_begin
    graph.capture_end = capture_end
    if hasattr(graph, "register_generator_state"):
        graph.register_generator_state = _held(graph.register_generator_state)


def _held(register: Any) -> Any:
    """What it makes for a generator, its seed, is filled when the capture begins."""

    @functools.wraps(register)
    def register_generator_state(self: Any, *args: Any, **kwargs: Any) -> None:
        if not library.loaded():
            register(self, *args, **kwargs)
            return
        try:
            library.ops().hold_for_graph(True)
            register(self, *args, **kwargs)
        finally:
            library.ops().hold_for_graph(False)

    return register_generator_state


def _make_room() -> torch.Tensor:
    """For the state of random numbers that the graph keeps. Nothing moves while that is made, so it
    is to be held until no segment is given back any more."""
    return torch.empty(_STATE_BYTES, dtype=torch.uint8, device="cuda")


def _keep_for_ever(graph: Any) -> None:
    """One that found no room for the state of its random numbers. Its end, also at exit, would be
    the process's: it tells the generator, which does not know it yet, that it is gone, and PyTorch
    throws from there."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(graph))


def _abandon(graph: Any) -> None:
    """PyTorch up to 2.6 leaves its allocator as if the capture went on, and nothing would move."""
    _over(graph, "abandon_capture")


def _end(graph: Any) -> None:
    _over(graph, "end_capture")


def _over(graph: Any, how: str) -> None:
    capture = graph.__dict__.pop("_lms_capture", None)
    if capture is not None:
        try:
            getattr(library.ops(), how)(capture)
        finally:
            fusion.settle()


def check() -> None:
    """Raises RuntimeError if a graph uses tensors that nobody noted."""
    if _unnoted:
        raise RuntimeError(
            "Large Model Support cannot be enabled because a CUDA graph was captured before it was "
            "first enabled, and nothing noted what the graph uses; enable it before the capture"
        )
