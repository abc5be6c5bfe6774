"""The public headers as data: structs with their layout, functions with their parameters, constants.

The headers keep to a small part of C (no unions, no bit-fields, one declaration a line or a few), which this
reads; what it does not understand is an error. Layouts are those of a 64-bit machine.
"""

import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
INCLUDE = ROOT / "cuda/include"
PARTS = ("base", "llm", "compute", "backend", "zctl")
HEADERS = ["worker_cuda.h"] + [f"worker_cuda/{name}.h" for name in PARTS]

SIZES = {
    "uint8_t": 1, "char": 1, "int32_t": 4, "uint32_t": 4, "float": 4, "wcuda_status": 4,
    "int64_t": 8, "uint64_t": 8, "double": 8, "size_t": 8,
}  # fmt: skip


@dataclasses.dataclass
class Field:
    name: str
    type: str  # without const, "*" for every pointer, "fn" for a pointer to a function
    count: int  # elements; 1 for what is no array
    is_array: bool
    signature: "Function | None" = None  # of a pointer to a function
    offset: int = 0
    bytes: int = 0
    alignment: int = 0


@dataclasses.dataclass
class Struct:
    name: str
    fields: list[Field]
    bytes: int = 0
    alignment: int = 0
    has_tail_padding: bool = False

    @property
    def grows(self) -> bool:
        return self.fields[0].name == "struct_size"

    @property
    def is_handle(self) -> bool:
        return [f.name for f in self.fields] == ["id"]

    @property
    def init(self) -> str:
        return self.name.upper() + "_INIT"


@dataclasses.dataclass
class Parameter:
    name: str
    type: str  # as written, without the name: "const wcuda_row*"


@dataclasses.dataclass
class Function:
    name: str
    returns: str
    parameters: list[Parameter]


@dataclasses.dataclass
class Interface:
    structs: dict[str, Struct]
    functions: list[Function]
    callbacks: dict[str, Function]
    constants: dict[str, str]


def plain(text: str) -> str:
    """The text without comments and continued lines."""
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S).replace("\\\n", " ")


def read_fields(body: str, constants: dict[str, str], functions: set[str]) -> list[Field]:
    fields = []
    for declaration in filter(None, (re.sub(r"\s+", " ", d).strip() for d in body.split(";"))):
        pointer = re.fullmatch(r"([\w ]+)\(\*(\w+)\)\((.*)\)", declaration)
        if pointer:
            returns, name, parameters = pointer.groups()
            signature = Function(name, returns.strip(), read_parameters(parameters))
            fields.append(Field(name, "fn", 1, False, signature))
            continue
        match = re.fullmatch(r"(?:const )?(\w+)((?: ?\*)*) ?(\w+)(?:\[(\w+)\])?", declaration)
        if not match:
            raise ValueError(f"cannot read the field '{declaration}'")
        kind, stars, name, count = match.groups()
        kind = "*" if stars.strip() else "fn" if kind in functions else kind
        count = constants.get(count, count)
        fields.append(Field(name, kind, int(count) if count else 1, bool(count)))
    return fields


def lay_out(struct: Struct, structs: dict[str, Struct]) -> None:
    end = 0
    for field in struct.fields:
        if field.type in structs:
            size, alignment = structs[field.type].bytes, structs[field.type].alignment
        else:
            size = alignment = SIZES.get(field.type) or {"*": 8, "fn": 8}[field.type]
        end = (end + alignment - 1) // alignment * alignment
        field.offset, field.bytes, field.alignment = end, size * field.count, alignment
        end += field.bytes
        struct.alignment = max(struct.alignment, alignment)
    struct.bytes = (end + struct.alignment - 1) // struct.alignment * struct.alignment
    struct.has_tail_padding = struct.bytes != end


def read_parameters(text: str) -> list[Parameter]:
    parameters = []
    for part in filter(None, (re.sub(r"\s+", " ", p).strip() for p in text.split(","))):
        if part == "void":
            continue
        match = re.fullmatch(r"(.*?[\w*]) ?\b(\w+)(\[\w*\])?", part)
        kind = match.group(1).strip()
        parameters.append(Parameter(match.group(2), kind + "*" if match.group(3) else kind))
    return parameters


def read(include: pathlib.Path = INCLUDE) -> Interface:
    # The frozen headers of a version lack the parts that came later.
    paths = [path for part in PARTS if (path := include / f"worker_cuda/{part}.h").exists()]
    text = "".join(plain(path.read_text()) for path in paths)
    constants = dict(re.findall(r"#define (WCUDA_\w+) +(\(.*\)|-?\w+) *$", text, flags=re.M))
    constants.pop("WCUDA_API", None)
    interface = Interface({}, [], {}, constants)
    code = re.sub(r"^#.*$", "", text, flags=re.M)
    for match in re.finditer(r"typedef ([\w ]+?) \(\*(\w+)\)\(([^;]*)\);", code):
        interface.callbacks[match.group(2)] = Function(
            match.group(2), match.group(1), read_parameters(match.group(3))
        )
    for match in re.finditer(r"typedef struct (\w+) \{(.*?)\} \1;", code, flags=re.S):
        struct = Struct(match.group(1), read_fields(match.group(2), constants, set(interface.callbacks)))
        lay_out(struct, interface.structs)
        interface.structs[struct.name] = struct
    for match in re.finditer(r"WCUDA_API ([\w ]+?\*?) ?(\w+)\(([^;]*)\);", code):
        interface.functions.append(
            Function(match.group(2), match.group(1).strip(), read_parameters(match.group(3)))
        )
    if code.count("WCUDA_API ") != len(interface.functions):
        raise ValueError("a function could not be read")
    if code.count("typedef struct") != len(interface.structs):
        raise ValueError("a struct could not be read")
    return interface


if __name__ == "__main__":
    found = read()
    print(len(found.structs), "structs,", len(found.functions), "functions,", len(found.constants), "constants")
