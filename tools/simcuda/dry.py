# SPDX-License-Identifier: Apache-2.0
"""What Python does about a device that has no values: names the lines that read one, and keeps
torch itself from reading any."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from .errors import SimcudaError
from .torchinfo import Torch

# Of torch; before, too many operators have no kernel that tells the shape.
_OLDEST = (2, 6)

_OURS = str(Path(__file__).resolve().parent)
# What reads no value in order to branch, or asks whether gradients overflowed: 0 says they did not.
_KNOWING = tuple(
    str(Path("torch", *path))
    for path in (
        ("amp", "grad_scaler.py"),
        ("autograd", "graph.py"),
        ("nn", "modules", "module.py"),
    )
)
_TELLING = "get_scale"  # of the first: the program gets the value

_Listener = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)
_listener: Any = None  # kept: the kernels have its address


def _read(op: str) -> int:
    """Not 0: refused. Until `listen` puts another in its place."""
    return 0


def require_shapes(torch: Torch) -> None:
    """Raises SimcudaError for one that cannot run dry."""
    if tuple(int(part) for part in torch.version.split(".")[:2]) < _OLDEST:
        raise SimcudaError(
            f"torch {torch.version} cannot run on the dry device because it has no shapes for many "
            f"operators; take {_OLDEST[0]}.{_OLDEST[1]} or later, or leave out --dry"
        )


def listen(kernels: ctypes.CDLL, policy: str, refuse: Callable[[str], object]) -> None:
    """Tell each line of the program that reads a value, once, or let it fail. `policy` is one of
    config.VALUES, `refuse` keeps the text of what fails."""
    global _listener, _read
    told: set[str] = set()

    def read(op: str) -> int:
        where = None if policy == "off" else _line(sys._getframe(1))
        if where is None:
            return 0
        what = f"{where} reads a value ({op}), and on a dry device every value is 0"
        if policy == "error":
            refuse(what)
            return 1
        if where not in told:
            told.add(where)
            print(f"simcuda: {what}: what it decides, a GPU may decide otherwise", file=sys.stderr)
        return 0

    _read, _listener = read, _Listener(lambda op: read(op.decode()))
    kernels.simcuda_on_read(_listener)


def _line(frame: FrameType | None) -> str | None:
    """Where the program itself is; None where what reads knows that there are no values."""
    torch = str(Path(sys.modules["torch"].__file__ or "").parent)
    frame = _outside(frame, (_OURS,))
    if frame is None:
        return None
    code = frame.f_code
    if code.co_filename.endswith(_KNOWING) and code.co_name != _TELLING:
        return None
    frame = _outside(frame, (_OURS, torch))
    if frame is None:
        return None
    code = frame.f_code
    return f'File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}'


def _outside(frame: FrameType | None, folders: tuple[str, ...]) -> FrameType | None:
    while frame is not None and frame.f_code.co_filename.startswith(folders):
        frame = frame.f_back
    return frame


def prepare() -> None:
    """Once torch is imported and has the kernels."""
    import torch

    torch.backends.mha.set_fastpath_enabled(False)  # fused for inference, without a shape
    torch.distributions.Distribution.set_default_validate_args(False)
    torch.distributed._verify_params_across_processes = _refuse_ddp
    # Before torch tells its allocator, for which the capture would never end.
    torch.cuda.graph.__enter__ = torch.cuda.CUDAGraph.capture_begin = _refuse_graph
    tolist, formatted = torch.Tensor.tolist, torch._tensor_str._tensor_str

    def read_list(self: Any) -> Any:
        if self.is_cuda and _read("Tensor.tolist"):
            raise NotImplementedError("the dry device refuses: a value is read by tolist()")
        return tolist(self)

    def zeros_as_text(self: Any, indent: int) -> str:
        # Printing picks values by masks, and would copy them one by one.
        if self.is_cuda and self.layout is torch.strided:
            self = torch.zeros((), dtype=self.dtype).expand(self.shape)
        return str(formatted(self, indent))

    torch.Tensor.tolist, torch._tensor_str._tensor_str = read_list, zeros_as_text
    for name, place in (("embedding", 4), ("embedding_bag", 5)):
        setattr(torch, name, _without_sparse_gradient(getattr(torch, name), place))
    for name, shape in _SHAPES.items():
        if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta"):
            torch.library.impl(name, "Meta", shape)


def _refuse_ddp(*_: Any) -> None:
    raise NotImplementedError(
        "the dry device refuses: DistributedDataParallel, because its processes agree by values "
        "on what they send, and every value is 0; run the model without it, in one process: memory "
        "and time of a GPU are those, but for the buckets of gradients and their exchange"
    )


def _refuse_graph(*_: Any, **__: Any) -> None:
    raise NotImplementedError(
        "the dry device refuses: the capture of a CUDA graph, because it has none; run the same "
        "without one: kernels and memory are those, but the host issues each"
    )


def _without_sparse_gradient(function: Callable[..., Any], place: int) -> Callable[..., Any]:
    """Refuses where the line of the program is known: in the backward pass none is."""
    import torch

    def checked(weight: Any, *more: Any, **named: Any) -> Any:
        sparse = more[place - 1] if len(more) >= place else named.get("sparse", False)
        if sparse and weight.is_cuda and weight.requires_grad and torch.is_grad_enabled():
            raise NotImplementedError(
                f"the dry device refuses: {function.__name__} with sparse=True, at "
                f"{_line(sys._getframe(1))}, because its gradient is a sparse tensor, and there "
                "are shapes of dense ones only; give sparse=False, whose gradient is as large as "
                "the weight"
            )
        return function(weight, *more, **named)

    return checked


def _like(*places: int) -> Callable[..., Any]:
    """Results that look like these arguments."""

    def make(*arguments: Any, **_: Any) -> Any:
        made = [arguments[place].new_empty(arguments[place].shape) for place in places]
        return made[0] if len(made) == 1 else tuple(made)

    return make


# Operators of ordinary models that torch has no kernel for Meta for.
_SHAPES = {
    "aten::_weight_norm_interface_backward": _like(1, 2),
    "aten::multi_margin_loss_backward": _like(1),
    "aten::multilabel_margin_loss_backward": _like(1),
    "aten::_ctc_loss_backward": _like(1),
    "aten::_logcumsumexp": _like(0),
}
