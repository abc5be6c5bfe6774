"""The layers of cuda/: a folder includes only folders before it, and kernels/ only itself and base, quant.

Reads the #include lines of cuda/src, cuda/kernels and cuda/include; prints each that breaks the order.
"""

import pathlib
import re
import sys

LAYERS = [
    "base", "quant", "gguf", "nvrtc", "backend", "vram", "jit", "compute", "ops", "model", "health",
    "zctl", "engine", "api",
]  # fmt: skip
# Device code is below the host code: it sees block structs and the templates of base, nothing else.
KERNELS_MAY_INCLUDE = {"kernels", "base", "quant"}
# The host code that launches kernels, and the unpackers and hashes shared with the host. The engine's
# CUDA runner queues the kernels of a step that no model sees: inputs, sampling, pages.
MAY_INCLUDE_KERNELS = {"base", "quant", "backend", "vram", "compute", "ops", "model", "engine"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def violation(layer: str, included: str) -> str | None:
    """Why a file of `layer` may not include `included`, or None."""
    target = included.split("/")[0]
    if "/" not in included:
        ours = included in ("worker_cuda.h", "worker_cuda_compat.h")
        return None if ours else "is not written as folder/file"
    if layer == "include":
        return "is not part of the public headers"
    if target != "kernels" and target not in LAYERS:
        return f"names no layer ({target})"
    if layer == "kernels":
        return None if target in KERNELS_MAY_INCLUDE else "is above kernels"
    if target == "kernels":
        return None if layer in MAY_INCLUDE_KERNELS else f"is closed to {layer}"
    if LAYERS.index(target) > LAYERS.index(layer):
        return f"is above {layer}"
    return None


def check(root: pathlib.Path) -> list[str]:
    found = []
    folders = [(path, path.name) for path in sorted((root / "src").iterdir()) if path.is_dir()]
    folders += [(root / "kernels", "kernels"), (root / "include", "include")]
    for folder, layer in folders:
        if layer not in LAYERS + ["kernels", "include"]:
            found.append(f"{folder}: no layer of this name")
            continue
        for path in sorted(folder.rglob("*")):
            if path.suffix not in (".h", ".cpp", ".cu", ".cuh", ".inc"):
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                reason = violation(layer, match.group(1)) if match else None
                if reason:
                    found.append(f'{path}:{number}: "{match.group(1)}" {reason}')
    return found


def main() -> int:
    assert violation("gguf", "engine/step.h") and not violation("engine", "gguf/gguf.h")
    found = check(pathlib.Path(__file__).parents[2] / "cuda")
    print("\n".join(found) or "layers: in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
