"""Writes the calls of the fuzzer of the C ABI from the headers: fuzz.py OUTPUT.

For each struct a function that fills it with hostile values, for each function and each slot of a backend's
table a case that calls it with hostile arguments, and a table of a caller that has every slot. What a value may
be is decided by its type and its name alone, so a new function is fuzzed from the day it is declared;
cuda/fuzz/abi/fuzz.cpp has the values.
"""

import pathlib
import sys

import header

# Numbers that describe memory the library is entitled to trust: they stay within what is really there.
TRUSTED = ("count", "bytes", "capacity", "size", "words", "index", "number")


def is_trusted(name: str) -> bool:
    return name.endswith(TRUSTED)


def fill_field(struct_name: str, field: header.Field, interface: header.Interface) -> str | None:
    target = f"v->{field.name}"
    if field.name == "struct_size":
        return None
    if field.is_array:
        return f"noise(&{target}, sizeof({target}));" if field.type not in interface.structs else None
    if field.type in interface.structs:
        struct = interface.structs[field.type]
        if struct.is_handle:
            return f"{target}.id = handle(kind_of<{field.type}>());"
        if field.type == "wcuda_string":
            return f"{target} = text();"
        return None
    if field.type == "*" and (struct_name, field.name) == ("wcuda_backend_registration", "table"):
        return f"{target} = callers_table();"
    if field.type == "fn":
        return f"{target} = callback<decltype({target})>();"
    if field.type == "*":
        return f"{target} = pointer<decltype({target})>();"
    kind = "trusted" if is_trusted(field.name) else "number"
    return f"{target} = {kind}<decltype({target})>();"


def fillers(interface: header.Interface) -> list[str]:
    lines = []
    for struct in interface.structs.values():
        if struct.is_handle or not struct.grows:
            continue
        lines.append(f"void fill({struct.name}* v) {{")
        lines += [f"  {line}" for f in struct.fields if (line := fill_field(struct.name, f, interface))]
        lines.append("}")
    return lines


def base_of(kind: str) -> str:
    return kind.replace("const ", "").replace("*", "").strip()


def argument(parameter: header.Parameter, function: header.Function, interface: header.Interface) -> str:
    kind, name = parameter.type, parameter.name
    base = base_of(kind)
    struct = interface.structs.get(base)
    stars = kind.count("*")
    if base == "wcuda_error":
        return "error()"
    if function.name == "wcuda_buffer_borrow" and name == "address":
        return "fresh()"
    if base == "wcuda_device_memory":
        return "memory()" if stars == 0 else "made_memory()"
    if stars == 0:
        if struct and struct.is_handle:
            return f"{base}{{handle(kind_of<{base}>())}}"
        if base == "wcuda_string":
            return "text()"
        if base in interface.callbacks:
            return f"callback<{base}>()"
        return f"{'trusted' if is_trusted(name) else 'number'}<{base}>()"
    if stars == 1 and struct and struct.is_handle:
        return f"made<{base}>()"
    if stars == 1 and struct and struct.grows:
        bounded = function.name == "wcuda_buffer_borrow"
        return f"{'sized_small' if bounded else 'sized'}<{base}>()"
    if stars == 1 and base not in ("void", "char") and base != "wcuda_string" and "const" not in kind:
        return f"output<{base}>()"
    return f"pointer<{kind}>()"


def slots(interface: header.Interface) -> list[header.Function]:
    return [f.signature for f in interface.structs["wcuda_backend_vtable"].fields if f.signature]


def cases(interface: header.Interface) -> list[str]:
    """Functions, then the slots of the library's table; a slot's `self` is the id of a backend."""
    lines = []
    functions = [(f.name, f, f.parameters, "") for f in interface.functions]
    functions += [(f"table->{f.name}", f, f.parameters[1:], "self(), ") for f in slots(interface)]
    for index, (name, function, parameters, first) in enumerate(functions):
        arguments = ", ".join(argument(p, function, interface) for p in parameters)
        call = f"{name}({first}{arguments})".replace(", )", ")")
        result = f"status({call})" if function.returns == "wcuda_status" else f"(void)({call})"
        if function.returns == "void":
            result = call
        lines.append(f'    case {index}: name_ = "{name}"; {result}; break;')
    return lines


def kinds(interface: header.Interface) -> list[str]:
    handles = [s.name for s in interface.structs.values() if s.is_handle]
    lines = [f"constexpr int kKindCount = {len(handles)};", "template <class T> constexpr int kind_of();"]
    lines += [f"template <> constexpr int kind_of<{name}>() {{ return {i}; }}" for i, name in enumerate(handles)]
    lines += ["void release(int kind, uint64_t id) {", "  switch (kind) {"]
    for i, name in enumerate(handles):
        ends = [f"{name}_{verb}" for verb in ("destroy", "close", "unload")]
        known = [f.name for f in interface.functions if f.name in ends]
        lines += [f"    case {i}: {end}({name}{{id}}); break;" for end in known]
    lines += ["  }", "}"]
    return lines


def callers_table(interface: header.Interface) -> list[str]:
    lines = ["void fill_callers_table(wcuda_backend_vtable* v) {"]
    lines += [f"  v->{f.name} = Forward<&wcuda_backend_vtable::{f.name}>::call;" for f in slots(interface)]
    return lines + ["}"]


def main() -> int:
    interface = header.read()
    text = ["// Written by tools/abi/fuzz.py."]
    text += ["#ifdef WCUDA_FUZZ_KINDS"] + kinds(interface) + ["#endif"]
    text += ["#ifdef WCUDA_FUZZ_FILL"] + fillers(interface) + ["#endif"]
    text += ["#ifdef WCUDA_FUZZ_TABLE"] + callers_table(interface) + ["#endif"]
    count = len(interface.functions) + len(slots(interface))
    text += ["#ifdef WCUDA_FUZZ_CALLS", f"static constexpr int kFunctionCount = {count};"]
    text += ["void call(int index) {", "  switch (index) {"] + cases(interface) + ["  }", "}", "#endif", ""]
    path = pathlib.Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
