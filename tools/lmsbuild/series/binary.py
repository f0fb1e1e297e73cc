# SPDX-License-Identifier: Apache-2.0
"""Binary files in patches, in git's own form. Both sides are whole and not compressed: so no
version of git or zlib makes other bytes of them."""

from __future__ import annotations

import base64
import binascii
import re
import struct
import zlib

MARK = "GIT binary patch\n"

_LINE = 52  # bytes
_BLOCK = 0xFFFF  # of what zlib stores as it is
_LITERAL = re.compile(r"literal (\d+)\n((?:[A-Za-z][^\n]+\n)*)\n")


def render(before: bytes, after: bytes) -> str:
    return f"{MARK}{_literal(after)}\n{_literal(before)}\n"


def read(part: str) -> tuple[bytes, bytes]:
    """The file before and after, of the diff of one file. Raises ValueError for what is damaged or
    in git's other form, which says only what differs."""
    found = _LITERAL.findall(part.partition(MARK)[2])
    if len(found) != 2:
        raise ValueError("its binary patch is not two literals")
    after, before = (_unpacked(int(size), lines) for size, lines in found)
    return before, after


def _literal(data: bytes) -> str:
    packed = _stored(data)
    chunks = (packed[at : at + _LINE] for at in range(0, len(packed), _LINE))
    lines = (_length(len(c)) + base64.b85encode(c, pad=True).decode() for c in chunks)
    return "".join(f"{line}\n" for line in (f"literal {len(data)}", *lines))


def _length(count: int) -> str:
    return chr(ord("A") + count - 1) if count <= 26 else chr(ord("a") + count - 27)


def _stored(data: bytes) -> bytes:
    """A zlib stream of blocks that are not compressed."""
    blocks = [data[at : at + _BLOCK] for at in range(0, len(data), _BLOCK)] or [b""]
    made = b"\x78\x01"
    for number, block in enumerate(blocks, 1):
        size = len(block)
        made += struct.pack("<BHH", number == len(blocks), size, size ^ 0xFFFF) + block
    return made + struct.pack(">I", zlib.adler32(data))


def _unpacked(size: int, lines: str) -> bytes:
    packed = b""
    try:
        for line in lines.splitlines():
            count = ord(line[0]) - (ord("A") - 1 if line[0].isupper() else ord("a") - 27)
            packed += base64.b85decode(line[1:])[:count]
        data = zlib.decompress(packed)
    except (ValueError, binascii.Error, zlib.error) as error:
        raise ValueError(f"its binary patch is damaged ({error})") from error
    if len(data) != size:
        raise ValueError("its binary patch has another length than it says")
    return data
