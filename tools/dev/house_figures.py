"""Size of the code: house_figures.py [CHECKOUT]. Prints a Markdown table; counts tracked files only."""

import collections
import pathlib
import re
import subprocess
import sys

ROOMS = [  # a file belongs to the first that matches
    "cuda/include", "cuda/kernels", "cuda/src", "cuda/tests", "cuda/fuzz", "cuda/bench", "cuda",
    "src", "tests", "examples", "worker", "tools", "docs",
]  # fmt: skip
CODE = {".h", ".c", ".cpp", ".cu", ".cuh", ".inc", ".rs", ".py", ".sh", ".cmake", ".txt", ".md", ".toml", ""}

GENERATED = {  # written by a script that ./dev test runs with --check
    "cuda/src/api/base/abi_layout.inc",  # tools/abi/generate.py
    "cuda/src/api/base/abi_first_bytes.inc",
    "cuda/kernels/shared/iq_tables.h",  # tools/make_iq_tables.py
}


def tracked(root: pathlib.Path):
    """Names and texts of source files; test data, fuzz corpora and results are not source."""
    names = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True, check=True).stdout
    for name in names.splitlines():
        parts = pathlib.PurePath(name).parts
        if {"data", "corpus", "results"} & set(parts) or pathlib.PurePath(name).suffix not in CODE:
            continue
        yield name, (root / name).read_text(errors="replace")


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    files, lines, generated = collections.Counter(), collections.Counter(), collections.Counter()
    counts = collections.Counter()
    for name, text in tracked(root):
        room = next((room for room in ROOMS if name.startswith(room + "/")), "elsewhere")
        files[room] += 1
        lines[room] += text.count("\n")
        if name in GENERATED:
            generated[room] += text.count("\n")
        suffix = pathlib.PurePath(name).suffix
        if name.startswith("cuda/include"):
            counts["C functions"] += len(re.findall(r"^WCUDA_API ", text, re.MULTILINE))
        if name.startswith("cuda/src"):
            virtual = len(re.findall(r"^\s*virtual (?!~)", text, re.MULTILINE))
            counts["virtual functions in cuda/src"] += virtual
            if name.endswith("backend/backend.h"):
                counts["of `Backend`"] += virtual
        if name.startswith("cuda/tests") and suffix in {".cpp", ".cu"}:
            counts["GoogleTest cases (a parameterised one counts once)"] += len(
                re.findall(r"^(?:TYPED_)?TEST(?:_F|_P)?\(", text, re.MULTILINE)
            )
        if suffix == ".rs":
            counts["Rust tests"] += len(re.findall(r"^\s*#\[test\]", text, re.MULTILINE))
    print("| | files | lines | of these generated |\n|---|---:|---:|---:|")
    for room in [*ROOMS, "elsewhere"]:
        print(f"| `{room}` | {files[room]} | {lines[room]:,} | {generated[room]:,} |")
    print(f"| all | {sum(files.values())} | {sum(lines.values()):,} | {sum(generated.values()):,} |\n")
    written = sum((lines - generated)[room] for room in ("cuda/kernels", "cuda/src"))
    print(f"`cuda/kernels` and `cuda/src` without generated files: {written:,} lines\n")
    print("| | count |\n|---|---:|")
    for what, count in counts.items():
        print(f"| {what} | {count:,} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
