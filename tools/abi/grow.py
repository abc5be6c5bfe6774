"""Writes what a caller newer than the archive needs: grow.py FOLDER.

FOLDER/worker_cuda.h and its parts have one field more, `uint64_t grown`, in every struct that can grow, as a later
version would append one. FOLDER/newer_calls.inc calls each function that takes such a struct with that field
set: cuda/tests/abi/newer_caller.c includes it. cuda/tests/abi/grown.sh builds the library with these headers.
"""

import pathlib
import re
import shutil
import sys

import generate
import header

ARGUMENTS = 4  # of a kernel; each struct is the first of so many

# Arguments that must be right for a call to look at its structs, by name or by function and name; others are 0.
NUMBERS = {
    "capacity": 1,
    "argument_count": ARGUMENTS,
    "row_count": 1,
    "backend": "WCUDA_BACKEND_HOST",
    "type": "WCUDA_ARG_F32",
    ("wcuda_tensor_type_info_get", "type"): 0,
    "kernel_id": 2,  # tensor_add of f32
}
TEXTS = {
    "key": "general.architecture",
    "device": "H200",
    ("wcuda_gguf_tensor_find", "name"): "token_embd.weight",
}


def grow(text: str, interface: header.Interface) -> str:
    for struct in interface.structs.values():
        if struct.grows:
            text = re.sub(rf"^\}} {struct.name};", f"  uint64_t grown;\n}} {struct.name};", text, flags=re.M)
    return text


def base_of(kind: str) -> str:
    return kind.replace("const ", "").replace("*", "").strip()


def grows(parameter: header.Parameter, interface: header.Interface) -> bool:
    struct = interface.structs.get(base_of(parameter.type))
    return parameter.type.count("*") == 1 and struct is not None and struct.grows


def argument(parameter: header.Parameter, function: header.Function, interface: header.Interface) -> str:
    kind, name = parameter.type, parameter.name
    base = base_of(kind)
    if grows(parameter, interface):
        return name
    if base == "wcuda_error":
        return "&error"
    if "*" in kind:
        return "(void*)scratch"
    if base == "wcuda_string":
        text = TEXTS.get((function.name, name), TEXTS.get(name, "vector_add"))
        return f"text_of(\"{text}\")"
    if base in interface.structs:
        return f"live.{base.removeprefix('wcuda_')}"
    return str(NUMBERS.get((function.name, name), NUMBERS.get(name, 0)))


def newer_calls(interface: header.Interface) -> str:
    """A block for each function and each of its structs that grow: that one has a tail which is not zero."""
    lines = ["/* Written by tools/abi/grow.py. */"]
    for function in interface.functions:
        structs = [p for p in function.parameters if grows(p, interface)]
        call = f"{function.name}({', '.join(argument(p, function, interface) for p in function.parameters)})"
        for newer in structs:
            lines.append("{")
            for each in structs:
                base = base_of(each.type)
                inits = ", ".join([interface.structs[base].init] * ARGUMENTS)
                lines.append(f"  {base} {each.name}[{ARGUMENTS}] = {{{inits}}};")
            lines += [f"  {newer.name}->grown = 1;", f"  REFUSED({call});", "}"]
    return "\n".join(lines) + "\n"


def main() -> int:
    target = pathlib.Path(sys.argv[1])
    shutil.copytree(header.INCLUDE, target, dirs_exist_ok=True)
    interface = header.read()
    for part in header.PARTS:
        path = target / f"worker_cuda/{part}.h"
        path.write_text(grow(path.read_text(), interface))
    grown = header.read(target)
    for part in header.PARTS:
        path = target / f"worker_cuda/{part}.h"
        path.write_text(generate.write_init_macros(path.read_text(), grown))
    for struct in grown.structs.values():
        if struct.grows and struct.bytes != interface.structs[struct.name].bytes + 8:
            raise SystemExit(f"{struct.name}: did not grow by a field")
    (target / "newer_calls.inc").write_text(newer_calls(interface))
    return 0


if __name__ == "__main__":
    sys.exit(main())
