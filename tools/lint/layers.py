"""The layers of cuda/ and of the crate: a folder includes only itself and folders before it.

Reads the #include lines of cuda/kernels, cuda/src and cuda/include, and the `crate::` paths of src/; prints each
that breaks the order.
"""

import pathlib
import re
import sys

# Device code: each family sees what is before the families, and itself.
KERNELS_BASE = ["kernels/shared", "kernels/ptx"]
KERNEL_FAMILIES = [
    "kernels/memory", "kernels/linear", "kernels/step", "kernels/attention", "kernels/sampling",
    "kernels/catalogue",
]  # fmt: skip
LAYERS = KERNELS_BASE + KERNEL_FAMILIES + [
    "core/base", "core/backend", "core/vram", "core/gemm", "core/health",
    "llm/quant", "llm/gguf", "llm/model", "llm/ops", "llm/engine",
    "compute/nvrtc", "compute/jit", "compute/catalogue", "compute/registry",
    "zctl",
    "api/base", "api/llm", "api/compute", "api/backend", "api/zctl",
]  # fmt: skip
PUBLIC = re.compile(r"worker_cuda(_compat)?\.h|worker_cuda/\w+\.h")
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]((?:worker_cuda|(?<=")[^"])[^">]*)[">]')

# The crate's modules, bottom up.
MODULES = ["scheduler", "ffi", "core", "llm", "compute", "backend", "seal", "zctl"]
CRATE_PATH = re.compile(r"\bcrate::(\w+|\{)")
SUPER_PATH = re.compile(r"\b((?:super::)+)(\w+|\{)")
INLINE_MODULE = re.compile(r"^\s*(?:pub(?:\([^)]*\))? )?mod \w+ \{")


def layer_of(path: str) -> str:
    """The layer of a file: its first two folders, or the only one."""
    folders = path.split("/")[:-1]
    return "/".join(folders[:2])


def violation(layer: str, included: str) -> str | None:
    """Why a file of `layer` may not include `included`, or None."""
    if PUBLIC.fullmatch(included):
        return None
    if layer == "include":
        return "is not part of the public headers"
    target = layer_of(included)
    if target not in LAYERS:
        return f"names no layer ({target})"
    if layer == target:
        return None
    if layer in KERNEL_FAMILIES and target in KERNEL_FAMILIES:
        return f"is another family than {layer}"
    if LAYERS.index(target) > LAYERS.index(layer):
        return f"is above {layer}"
    return None


def check(root: pathlib.Path) -> list[str]:
    found = []
    folders = [(root / "include", "include")]
    rooms = [room for room in sorted((root / "src").glob("*/*")) if room.is_dir()]
    flat = sorted({path.parent for path in (root / "src").glob("*/*") if path.is_file()})
    for folder in rooms + flat + sorted((root / "kernels").iterdir()):
        layer = folder.relative_to(root).as_posix().removeprefix("src/")
        if layer not in LAYERS:
            found.append(f"{folder}: no layer of this name")
        folders.append((folder, layer))
    for folder, layer in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix not in (".h", ".cpp", ".cu", ".cuh", ".inc"):
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                reason = violation(layer, match.group(1)) if match else None
                if reason:
                    found.append(f'{path}:{number}: "{match.group(1)}" {reason}')
    return found


def modules_named(line: str, depth: int) -> list[str]:
    """The modules of the crate that a line names, by `crate::` or by enough `super::`; it stands in one of `depth`.
    A group, `crate::{…}`, counts as the module "{", which does not exist: one path a line."""
    by_super = [name for path, name in SUPER_PATH.findall(line) if path.count("super") >= depth]
    return CRATE_PATH.findall(line) + by_super


def check_crate(root: pathlib.Path) -> list[str]:
    """A module names only itself and modules before it; lib.rs alone re-exports."""
    found = []
    for path in sorted(root.rglob("*.rs")):
        module = path.relative_to(root).parts[0]
        if module == "lib.rs":
            continue
        if module not in MODULES:
            found.append(f"{path}: no module of this name")
            continue
        depth = len(path.relative_to(root).parts) - (path.name == "mod.rs")
        depth += path.name.endswith("_tests.rs")  # a module of the file that names it
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.lstrip().startswith("//"):
                continue
            depth += INLINE_MODULE.match(line) is not None  # such as tests, the last of a file
            for target in modules_named(line, depth):
                if target not in MODULES:
                    found.append(f"{path}:{number}: crate::{target} names no module")
                elif MODULES.index(target) > MODULES.index(module):
                    found.append(f"{path}:{number}: crate::{target} is above {module}")
    return found


def check_document(path: pathlib.Path) -> list[str]:
    """The table of ARCHITECTURE.md lists exactly LAYERS, in order."""
    section = path.read_text().split("\n## Layers\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    return [] if rows == LAYERS else [f"{path}: the table of layers differs from tools/lint/layers.py: {rows}"]


def main() -> int:
    assert violation("llm/gguf", "llm/engine/step.h") and not violation("llm/engine", "llm/gguf/gguf.h")
    assert modules_named("use super::super::llm::x; use super::y;", 2) == ["llm"]
    assert modules_named("use super::super::z; use crate::core::x;", 3) == ["core"]
    assert modules_named("use crate::{core, llm}; use super::{x, y};", 2) == ["{"]
    assert [INCLUDE.match(f"#include {name}") is not None for name in ('"a/b.h"', "<worker_cuda.h>", "<vector>")] == [
        True, True, False]  # fmt: skip
    root = pathlib.Path(__file__).parents[2]
    found = check(root / "cuda") + check_crate(root / "src")
    found += check_document(root / "docs/ARCHITECTURE.md")
    print("\n".join(found) or "layers: in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
