"""Writes the headers with one field more in every struct that can grow: grow.py FOLDER.

The field is `uint64_t grown`, as a later version would append one. cuda/tests/abi/grown.sh builds with it.
"""

import pathlib
import re
import shutil
import sys

import generate
import header


def grow(text: str, interface: header.Interface) -> str:
    for struct in interface.structs.values():
        if struct.grows:
            text = re.sub(rf"^\}} {struct.name};", f"  uint64_t grown;\n}} {struct.name};", text, flags=re.M)
    return text


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
    return 0


if __name__ == "__main__":
    sys.exit(main())
