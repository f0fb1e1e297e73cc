# SPDX-License-Identifier: Apache-2.0
"""Generates the C sources of what is not simulated: the rest of the CUDA API, and stand-ins for
the NVIDIA libraries that torch links. Each function fails by name when it is called."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

# Library name -> (prefix of its functions, the status that means "not supported").
LIBRARIES = {
    "cublas": (r"cublas(?!Lt)", 15),
    "cublasLt": (r"cublasLt", 15),
    "cudnn": (r"cudnn", 3000),
    "cufft": (r"cufft", 16),
    "cufile": (r"cuFile", 5022),
    "cupti": (r"cupti", 27),
    "curand": (r"curand", 999),
    "cusolver": (r"cusolver", 9),
    "cusparse": (r"cusparse(?!Lt)", 10),
    "cusparseLt": (r"cusparseLt", 10),
    "nccl": (r"p?nccl", 3),
    "nvrtc": (r"nvrtc", 7),
    "nvshmem_host": (r"nvshmem", 7),
    "nvToolsExt": (r"nvtx", -1),
}

# What comes with a library: a torch may use it without naming it.
BROUGHT = {"cublas": ("cublasLt",)}


@dataclass
class Library:
    """A shared library to stand in for: its file name and, per function, the symbol version."""

    soname: str
    name: str
    functions: dict[str, str] = field(default_factory=dict)

    @property
    def major(self) -> int:
        match = re.search(r"\.so\.(\d+)", self.soname)
        return int(match[1]) if match else 0


def _run(*command: str | Path) -> str:
    return subprocess.run([str(c) for c in command], capture_output=True, text=True).stdout


def needed_libraries(lib: Path) -> list[Library]:
    """The NVIDIA libraries that the libraries in `lib` need, with the functions they import."""
    needed: set[str] = set()
    imported: set[tuple[str, str]] = set()
    for path in sorted(lib.glob("*.so*")):
        needed |= set(re.findall(r"\(NEEDED\).*\[(.+)\]", _run("readelf", "-dW", path)))
        for line in _run("nm", "-D", "--undefined-only", path).splitlines():
            symbol, _, version = line.split()[-1].partition("@")
            imported.add((symbol, version.lstrip("@")))
    named = {}
    for soname in sorted(needed):
        match = re.fullmatch(r"lib([A-Za-z_]+)\.so[.\d]*", soname)
        if match and match[1] in LIBRARIES and not (lib / soname).exists():
            named[match[1]] = soname
    libraries = []
    for name, soname in named.items():
        brought = BROUGHT.get(name, ())
        names = [name, *(other for other in brought if other not in named)]
        prefix = "|".join(LIBRARIES[each][0] for each in names)
        library = Library(soname, name)
        for symbol, version in imported:
            if version == soname or (".so" not in version and re.match(prefix, symbol)):
                library.functions[symbol] = version
        libraries.append(library)
    return libraries


_HANDLES = re.compile(r"cublas(Create|Destroy|SetStream|SetWorkspace|SetMathMode)(_v2)?")


def library_source(library: Library) -> str:
    """C source of a stand-in. Version queries answer with the newest minor of the major."""
    failure = LIBRARIES[library.name][1]
    lines = [
        "// Generated: fails by name.",
        "#include <stddef.h>",
        "#include <stdlib.h>",
        "int simcuda_stub_called(const char*, int);",
        "const void* simcuda_dry(void);",
    ]
    for function in sorted(library.functions):
        parameters = "void"
        if function == "cuptiGetResultString":
            parameters = "int result, const char** text"
            body = '*text = "not simulated"; return 0;'
        elif function == "cudnnGetVersion":
            version = library.major * 10000 + 9900 if library.major > 8 else 8900
            body = f"return {version};"
        elif re.search(
            r"Get\w*(ErrorString|StatusString|ResultString|ErrorEnum|LastError)$", function
        ):
            body = f'return (long)"{function}: stand-in of the simulated device";'
        elif library.name == "cublas" and _HANDLES.fullmatch(function):
            # What torch does to have a workspace, before it would compute.
            parameters = "void** first"
            made = "*first = calloc(1, 8); " if function.startswith("cublasCreate") else ""
            refused = f'simcuda_stub_called("{function}", {failure})'
            body = f"if (!simcuda_dry()) return {refused}; {made}return 0;"
        else:
            body = f'return simcuda_stub_called("{function}", {failure});'
        lines.append(f"long {function}({parameters}) {{ {body} }}")
    return "\n".join(lines) + "\n"


def version_script(library: Library) -> str:
    versions = sorted({v for v in library.functions.values() if v}) or ["SIMCUDA"]
    return "".join(f"{version} {{ global: *; }};\n" for version in versions)


_DECLARED = {
    "cuda_runtime_api.h": re.compile(r"cudaError_t\s+CUDARTAPI\w*\s+(cuda\w+)\s*\("),
    "cuda.h": re.compile(r"CUresult\s+CUDAAPI\s+(cu\w+)\s*\("),
    "nvml.h": re.compile(r"nvmlReturn_t\s+DECLDIR\s+(nvml\w+)\s*\("),
}
# The next versions of a name are macros: `#define cuMemAlloc cuMemAlloc_v2`.
_RENAMED = re.compile(r"#\s*define\s+(cu\w+|nvml\w+)\s+(cu\w+|nvml\w+)\s*$", re.MULTILINE)


def api_functions(includes: list[Path]) -> set[str]:
    """Every function that the CUDA runtime, driver and NVML headers declare."""
    names: set[str] = set()
    for header, pattern in _DECLARED.items():
        path = next((f / header for f in includes if (f / header).is_file()), None)
        if path is None:  # nothing of it is asked for
            continue
        text = path.read_text(errors="replace")
        declared = set(pattern.findall(text))
        names |= declared
        names |= {new for old, new in _RENAMED.findall(text) if old in declared}
    return {n for n in names if not n.endswith(("_ptsz", "_ptds"))}


def api_source(functions: set[str]) -> str:
    """C source of the functions of the CUDA API that have no simulation."""
    lines = [
        "// Generated: fails by name.",
        "int simcuda_unsupported(const char*);",
        "int simcuda_stub_called(const char*, int);",
    ]
    for name in sorted(functions):
        # Only the runtime API keeps a thread's last error.
        if name.startswith("cuda"):
            body = f'simcuda_unsupported("{name}")'
        else:
            status = 3 if name.startswith("nvml") else 801
            body = f'simcuda_stub_called("{name}", {status})'
        lines.append(
            f'__attribute__((visibility("default"))) int {name}(void) {{ return {body}; }}'
        )
    return "\n".join(lines) + "\n"


# What makes a handle or a description, and what gives a handle its stream.
_MAKES = re.compile(r"(cudnn|cublas(Lt)?|cusolver(Dn|Sp|Rf)?|cusparse)Create\w*")
_STREAM = re.compile(r"(cublas|cudnn|cusolverDn|cusparse)SetStream(_v2)?")
_CHANGES = re.compile(r"[a-z]+(Lt|Dn|Sp|Rf)?(Set|Destroy|Restore)\w*|\w+VersionCheck")
_ANSWERS = re.compile(r"\w*(Get|Query|bufferSize|BufferSize|Info)\w*")
# Statuses that mean "not supported".
_REFUSES = {"cublas": 15, "cudnn": 9, "cufft": 16, "curand": 999, "cusolver": 9, "cusparse": 10}


def dry_library_source(functions: set[str]) -> str:
    """C source of functions of NVIDIA's libraries for a program that nothing is computed for. What
    makes something gives out zeroed memory; what computes, in cuBLAS and cuDNN, takes the time of
    a launch; what would have to answer fails by name, as does the rest of the other libraries."""
    lines = [
        "// Generated.",
        "#include <stdlib.h>",
        "int simcuda_stub_called(const char*, int);",
        "int simcuda_library_called(const char*, void*);",
    ]
    for name in sorted(functions):
        library = next(prefix for prefix in _REFUSES if name.startswith(prefix))
        if _MAKES.fullmatch(name):
            body = "*(void**)first = calloc(1, 512); return 0;"
        elif _STREAM.fullmatch(name):
            body = "*(void**)first = second; return 0;"
        elif _CHANGES.fullmatch(name):
            body = "return 0;"
        elif library in ("cublas", "cudnn") and not _ANSWERS.fullmatch(name):
            body = f'return simcuda_library_called("{name}", first);'
        else:
            body = f'return simcuda_stub_called("{name}", {_REFUSES[library]});'
        lines.append(
            '__attribute__((visibility("default"))) '
            f"int {name}(void* first, void* second) {{ {body} }}"
        )
    return "\n".join(lines) + "\n"


def defined_symbols(objects: list[Path], nm: str = "nm") -> set[str]:
    out = _run(nm, "--defined-only", "--extern-only", *objects)
    return {line.split()[-1] for line in out.splitlines() if len(line.split()) == 3}


_ASSEMBLER = "12.5"  # no older than any TensorFlow asks for
_PTXAS = """\
#!/bin/sh
# Generated: what XLA takes for the assembler of {release}, where nothing is computed.
out=
while [ $# -gt 0 ]; do
  case $1 in
    --version) echo "Cuda compilation tools, release {release}, V{release}.0"; exit 0 ;;
    -o) out=$2; shift ;;
  esac
  shift
done
[ -z "$out" ] || echo "not a program" > "$out"
"""


def ptxas_source() -> str:
    return _PTXAS.format(release=_ASSEMBLER)
