"""Writes what follows from the headers: INIT macros, the layout table and the sizes of version 1.

    generate.py           writes
    generate.py --check   fails where something differs from what would be written

INIT macros stay in the headers, where a reader expects them, with their zeros counted here. The layout table
of wcuda_abi_field_list and the table of first sizes, which the guard of the C interface reads, are .inc files
of cuda/src/api/base. First sizes are those of the frozen headers in cuda/tests/data/abi/<number>, where there
are any.
"""

import pathlib
import re
import sys

import header

FROZEN = header.ROOT / "cuda/tests/data/abi"
TABLES = header.ROOT / "cuda/src/api/base"

# Defaults other than zero, by struct and field.
DEFAULTS = {
    ("wcuda_context_options", "abi_version"): "WCUDA_ABI_VERSION",
    ("wcuda_source", "fd"): "-1",
    ("wcuda_launch", "grid"): "{1, 1, 1}",
    ("wcuda_launch", "block"): "{256, 1, 1}",
    ("wcuda_gemm", "type"): "WCUDA_GEMM_F32",
    ("wcuda_gemm", "alpha"): "1.0f",
}
ZEROS = {"*": "NULL", "fn": "NULL", "float": "0.0f", "double": "0.0"}
WIDTH = 108


def zero(field: header.Field, structs: dict[str, header.Struct]) -> str:
    one = ZEROS.get(field.type, "0")
    if field.type in structs:
        one = "{" + ", ".join(zero(each, structs) for each in structs[field.type].fields) + "}"
        if field.is_array:
            return "{" + ", ".join([one] * field.count) + "}"
    return "{" + one + "}" if field.is_array else one


def init_macro(struct: header.Struct, structs: dict[str, header.Struct]) -> str:
    values = [f"sizeof({struct.name})"]
    for field in struct.fields[1:]:
        values.append(DEFAULTS.get((struct.name, field.name)) or zero(field, structs))
    lines = [f"#define {struct.init}"]
    text = " {" + ", ".join(values) + "}"
    if len(lines[0] + text) <= WIDTH:
        return lines[0] + text
    line = "  {"
    for i, value in enumerate(values):
        piece = value + ("}" if i + 1 == len(values) else ", ")
        if len(line + piece) > WIDTH - 2:
            lines.append(line.rstrip())
            line = "   "
        line += piece
    return " \\\n".join(lines + [line])


def write_init_macros(text: str, interface: header.Interface) -> str:
    def replacement(match: re.Match) -> str:
        name = match.group(1)
        struct = next((s for s in interface.structs.values() if s.init == name), None)
        if not struct:
            raise ValueError(f"{name} belongs to no struct")
        return init_macro(struct, interface.structs)

    return re.sub(r"#define (WCUDA_\w+_INIT)\b(?:[^\n]*\\\n)*[^\n]*", replacement, text)


def layout_table(interface: header.Interface) -> str:
    lines = ["// Written by tools/abi/generate.py: every public struct, and every field of it."]
    for struct in interface.structs.values():
        lines.append(f"WCUDA_STRUCT({struct.name})")
        lines += [f"WCUDA_FIELD({struct.name}, {field.name})" for field in struct.fields]
    return "\n".join(lines) + "\n"


def first_sizes(interface: header.Interface) -> str:
    versions = sorted((int(p.name) for p in FROZEN.glob("*") if p.name.isdigit()), reverse=True)
    frozen = header.read(FROZEN / str(versions[0])).structs if versions else {}
    lines = ["// Written by tools/abi/generate.py: the size that each struct was first published with."]
    for struct in interface.structs.values():
        if struct.grows:
            first = frozen.get(struct.name, struct)
            lines.append(f"WCUDA_FIRST_BYTES({struct.name}, {first.bytes})")
    return "\n".join(lines) + "\n"


def faults(interface: header.Interface, texts: str) -> list[str]:
    """What a struct that grows must not have: padding that a new field would hide in, or no macro."""
    found = []
    for struct in interface.structs.values():
        if not struct.grows:
            continue
        if struct.has_tail_padding:
            found.append(f"{struct.name}: ends in padding; a field added there would not change its size")
        if f"#define {struct.init} " not in texts and f"#define {struct.init}\n" not in texts:
            found.append(f"{struct.name}: has no {struct.init}")
    return found


def outputs() -> dict[pathlib.Path, str]:
    interface = header.read()
    result = {}
    for part in header.PARTS:
        path = header.INCLUDE / f"worker_cuda/{part}.h"
        result[path] = write_init_macros(path.read_text(), interface)
    result[TABLES / "abi_layout.inc"] = layout_table(interface)
    result[TABLES / "abi_first_bytes.inc"] = first_sizes(interface)
    if found := faults(interface, "".join(result.values())):
        raise SystemExit("\n".join(found))
    return result


def main() -> int:
    different = [(p, t) for p, t in outputs().items() if not p.exists() or p.read_text() != t]
    if "--check" in sys.argv[1:]:
        for path, _ in different:
            print(f"{path.relative_to(header.ROOT)}: differs; run python3 tools/abi/generate.py")
        print("abi: generated parts are current" if not different else "", end="\n" if not different else "")
        return 1 if different else 0
    for path, text in different:
        path.write_text(text)
        print(f"wrote {path.relative_to(header.ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
