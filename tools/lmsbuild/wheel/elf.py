# SPDX-License-Identifier: Apache-2.0
"""What a shared library needs and gives, read from its dynamic section.

pyelftools finds the sections; the symbol table itself is unpacked in bulk, because a framework
library has hundreds of thousands of symbols.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection

from lmsbuild.base.errors import WheelError

_SYMBOL = {64: struct.Struct("IBBHQQ"), 32: struct.Struct("IIIBBH")}
_UNDEFINED = 0
_LOCAL = 0


def strong_symbols(objects: Sequence[Path]) -> list[str]:
    """The symbols that object files define and nobody else may: not inline functions and the like,
    of which any user has one."""
    found: set[str] = set()
    for path in objects:
        with path.open("rb") as stream:
            for section in ELFFile(stream).iter_sections():
                if isinstance(section, SymbolTableSection):
                    found.update(
                        symbol.name
                        for symbol in section.iter_symbols()
                        if symbol.entry.st_info.bind == "STB_GLOBAL"
                        and symbol.entry.st_shndx != "SHN_UNDEF"
                    )
    return sorted(found)


@dataclass(frozen=True)
class Library:
    soname: str
    needed: list[str]
    rpath: str
    is_runpath: bool
    versions: dict[str, list[str]]  # needed library -> symbol versions, e.g. GLIBC_2.34
    imports: frozenset[str]
    exports: frozenset[str]

    def only(self, symbols: frozenset[str]) -> Library:
        return replace(self, imports=self.imports & symbols, exports=self.exports & symbols)

    def dump(self) -> dict[str, object]:
        """A JSON-able form, for `load`."""
        return {**vars(self), "imports": sorted(self.imports), "exports": sorted(self.exports)}

    @classmethod
    def load(cls, data: dict[str, Any]) -> Library:
        sets = {name: frozenset(data[name]) for name in ("imports", "exports")}
        return cls(**{**data, **sets})


def read(path: Path) -> Library:
    """Read a 64- or 32-bit ELF shared library. Raises WheelError when it is none."""
    try:
        with path.open("rb") as stream:
            return _read(ELFFile(stream))
    except (ELFError, struct.error) as error:
        raise WheelError(
            f"{path} cannot be read because it is no sound shared library ({error}); get it again"
        ) from error


def _read(elf: ELFFile) -> Library:
    soname, rpath, needed, is_runpath = "", "", [], False
    versions: dict[str, list[str]] = {}
    imports: set[str] = set()
    exports: set[str] = set()
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            tag: Any  # has the attribute that its d_tag names
            for tag in section.iter_tags():
                if tag.entry.d_tag == "DT_NEEDED":
                    needed.append(tag.needed)
                elif tag.entry.d_tag == "DT_SONAME":
                    soname = tag.soname
                elif tag.entry.d_tag == "DT_RPATH":
                    rpath = tag.rpath
                elif tag.entry.d_tag == "DT_RUNPATH":
                    rpath, is_runpath = tag.runpath, True
        elif isinstance(section, GNUVerNeedSection):
            for library, wanted in section.iter_versions():
                versions[str(library.name)] = sorted(version.name for version in wanted)
        elif section["sh_type"] == "SHT_DYNSYM":
            strings = elf.get_section(section["sh_link"]).data()
            wide = elf.elfclass == 64
            layout = struct.Struct(
                ("<" if elf.little_endian else ">") + _SYMBOL[elf.elfclass].format
            )
            for entry in layout.iter_unpack(section.data()):
                name_at, info, index = entry[0], entry[1 if wide else 3], entry[3 if wide else 5]
                if info >> 4 == _LOCAL or not name_at:
                    continue
                name = strings[name_at : strings.index(b"\0", name_at)].decode(errors="replace")
                (imports if index == _UNDEFINED else exports).add(name)
    return Library(
        soname, needed, rpath, is_runpath, versions, frozenset(imports), frozenset(exports)
    )
