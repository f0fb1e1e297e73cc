# SPDX-License-Identifier: Apache-2.0
"""Whether a pointer is asked for only to be compared, as the caller's code tells."""

from __future__ import annotations

import dis
import functools
from types import CodeType
from typing import List

# Of a tensor, what has its memory; of a storage, that of which the pointer is.
_METHODS = ("data_ptr", "_data_ptr", "untyped_storage", "storage", "detach")

_COMPARISONS = ("COMPARE_OP", "CONTAINS_OP", "IS_OP")
_CALLS = ("CALL", "CALL_METHOD", "CALL_FUNCTION")
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
# What does nothing to the stack that is of interest.
_NOTHING = ("CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "PRECALL")


@functools.lru_cache(maxsize=4096)
def compares(code: CodeType, at: int) -> bool:
    """Whether the instruction of `code` at this offset calls `data_ptr`, and what that returns is
    an operand of a comparison, as in

        a.data_ptr() == b.data_ptr()      pointer != module.weight.data_ptr()
        a.untyped_storage().data_ptr() in seen

    so that nothing keeps it. Of what comes between, the other operand, nothing may take another
    pointer that is kept: it is made of names, attributes and such calls. False where that cannot
    be told.
    """
    instructions = [one for one in dis.get_instructions(code) if one.opname not in _NOTHING]
    # That which the offset is in: within a call it may be that of its end.
    index = sum(one.offset <= at for one in instructions) - 1
    if index < 1 or _called(instructions, index - 1) not in ("data_ptr", "_data_ptr"):
        return False
    above = 0  # the pointer, on the stack
    index += 1
    while index < len(instructions):
        one = instructions[index]
        if one.opname in _COMPARISONS:
            return above <= 1
        if one.opname in _ATTRIBUTES and above > 0:
            method = _called(instructions, index)
            if method and method not in _METHODS:
                return False
            index += 2 if method else 1
        elif one.opname in _LOADS:
            above += _LOADS[one.opname]
            index += 1
        else:
            return False
    return False


def _called(instructions: List[dis.Instruction], index: int) -> str:
    """The name of the attribute, if the next instruction calls it, with nothing."""
    attribute = instructions[index]
    after = instructions[index + 1] if index + 1 < len(instructions) else attribute
    called = attribute.opname in _ATTRIBUTES and after.opname in _CALLS and not after.arg
    return str(attribute.argval) if called else ""
