# SPDX-License-Identifier: Apache-2.0
"""A pointer that is asked for only to be compared, or for how it is aligned, as the caller's code
tells."""

from __future__ import annotations

import dis
import sys
import weakref
from types import CodeType
from typing import Any, Callable, Dict, Iterator, Tuple

# Of a tensor, what has its memory; of a storage, that of which the pointer is.
_METHODS = (
    *("data_ptr", "_data_ptr", "untyped_storage", "storage", "detach"),
    *("view", "view_as", "flatten", "narrow", "select", "squeeze", "unsqueeze", "t", "transpose"),
)
_CALLS = ("CALL", "CALL_METHOD")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
# How much of each comes onto the stack.
_LOADS = {
    **dict.fromkeys(
        (
            *("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_DEREF", "LOAD_GLOBAL"),
            *("LOAD_NAME", "LOAD_CONST", "LOAD_SMALL_INT"),
        ),
        1,
    ),
    **dict.fromkeys(("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW"), 2),
}
# How many values are made one: of a slice, what its argument says.
_SUBSCRIPTS = {"BINARY_SUBSCR": 2, "BINARY_SLICE": 3, "BINARY_OP": 2}
_SUBSCRIPT_OPERATOR = 26  # of BINARY_OP, from Python 3.14 on
# Before Python 3.11 each has an instruction.
_OPERATORS = {
    ("BINARY_MULTIPLY", 0): "*",
    ("BINARY_MODULO", 0): "%",
    ("BINARY_OP", 5): "*",
    ("BINARY_OP", 6): "%",
}
# What does nothing to the stack that is of interest.
_NOTHING = ("CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "PRECALL")

_FLAGGED_ATTRIBUTES = sys.version_info >= (3, 12)  # the lowest bit is no part of the name
_SHIFT = 5 if sys.version_info >= (3, 13) else 4 if sys.version_info >= (3, 12) else 0

# By the identity of the code, which is forgotten with it: to hash code is to read all of it.
_known: Dict[int, Tuple[Any, Dict[int, bool]]] = {}


def compares(code: CodeType, at: int) -> bool:
    """Whether the instruction of `code` at this offset calls `data_ptr`, and what that returns is
    at once an operand of `==` or `!=`, as in

        a.data_ptr() == b.data_ptr()
        pointer != module.weight.untyped_storage().data_ptr()

    so that nothing keeps it. The other operand is made of names, attributes, subscripts and calls
    of methods that give a view, or such a pointer. Or its remainder is taken, by such an operand or
    a product of them: `a.data_ptr() % 16`. False where it is anything else, or cannot be told; also
    for `<` and the like, which mean addresses.
    """
    known = _known.get(id(code))
    if known is None or known[0]() is not code:
        key = id(code)
        known = (weakref.ref(code, lambda _: _known.pop(key, None)), {})
        _known[key] = known
    found = known[1]
    if at not in found:
        found[at] = _compares(code, at)
    return found[at]


def _compares(code: CodeType, at: int) -> bool:
    if _called_at(code, at) not in ("data_ptr", "_data_ptr"):
        return False
    above = [0]  # the pointer, on the stack; and above each method that is about to be called
    computed = False  # something of it
    for name, argument in _instructions(code, at + 2):
        operator = _OPERATORS.get((name, argument))
        if operator == "%":
            return above == [1]
        if name == "COMPARE_OP":
            equal = dis.cmp_op[argument >> _SHIFT] in ("==", "!=")
            return equal and above in ([0], [1]) and not computed
        if name in _ATTRIBUTES and above[-1] > 0:
            if name == "LOAD_METHOD" or (_FLAGGED_ATTRIBUTES and argument & 1):
                if _attribute(code, argument) not in _METHODS:
                    return False
                above[-1] -= 1
                above.append(0)
        elif name in _CALLS and len(above) > 1 and above[-1] == argument:
            above.pop()
            above[-1] += 1
        elif name in _LOADS:
            above[-1] += _LOADS[name]
        elif name == "BUILD_SLICE" and above[-1] >= argument:
            above[-1] -= argument - 1
        elif operator == "*" and above[-1] >= 2:
            above[-1] -= 1
            computed = True
        elif name in _SUBSCRIPTS and above[-1] >= _SUBSCRIPTS[name]:
            if name == "BINARY_OP" and argument != _SUBSCRIPT_OPERATOR:
                return False
            above[-1] -= _SUBSCRIPTS[name] - 1
        else:
            return False
    return False


def _attribute(code: CodeType, argument: int) -> str:
    return code.co_names[argument >> 1 if _FLAGGED_ATTRIBUTES else argument]


def _instructions(code: CodeType, start: int) -> Iterator[Tuple[str, int]]:
    """From this offset on, each with its argument."""
    raw, high = code.co_code, 0
    for offset in range(start, len(raw) - 1, 2):
        name, argument = dis.opname[raw[offset]], high | raw[offset + 1]
        high = argument << 8 if name == "EXTENDED_ARG" else 0
        if name not in _NOTHING and not (name.startswith("<") and raw[offset] == 0):
            yield name, argument


def _called_at(code: CodeType, at: int) -> str:
    """The attribute that is called, with nothing, by the instruction that this offset is in."""
    raw = code.co_code

    def name(offset: int) -> str:
        return dis.opname[raw[offset]] if offset >= 0 else ""

    def before(offset: int) -> int:
        while name(offset) in _NOTHING:
            offset -= 2
        return offset

    call = before(at - at % 2)
    if name(call) not in _CALLS or raw[call + 1] != 0:
        return ""
    offset = before(call - 2)
    if name(offset) not in _ATTRIBUTES:
        return ""
    argument, shift = raw[offset + 1], 8
    while name(offset - 2) == "EXTENDED_ARG":
        offset -= 2
        argument |= raw[offset + 1] << shift
        shift += 8
    return _attribute(code, argument)


# What stands for a storage's memory is aligned as that is: as the allocators' blocks are.
_ALIGNED = 512


class Compared(int):
    """A pointer as an operand of `==`: equal to what stands for its memory, and to where that is on
    the device when it is asked, since the other operand may be a pointer of it, and taken since.

    Its remainder is the pointer's where every place that the memory may have has the same; for
    another, `follow` gives the pointer, which stays."""

    place: Callable[[], int]
    follow: Callable[[], int]

    def __new__(
        cls, identity: int, place: Callable[[], int], follow: Callable[[], int]
    ) -> Compared:
        self = super().__new__(cls, identity)
        self.place, self.follow = place, follow
        return self

    def __mod__(self, divisor: Any) -> Any:
        told = isinstance(divisor, int) and divisor > 0 and _ALIGNED % divisor == 0
        return int.__mod__(self, divisor) if told else self.follow() % divisor

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        # By their values: two that share memory until one is written are not the same.
        is_of = int.__eq__
        return bool(
            is_of(self, other)
            or is_of(self.place() or -1, other)
            or (isinstance(other, Compared) and is_of(self, other.place() or -1))
        )

    def __ne__(self, other: object) -> Any:
        same = self.__eq__(other)
        return same if same is NotImplemented else not same

    __hash__ = int.__hash__
