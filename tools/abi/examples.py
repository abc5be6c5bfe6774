"""Writes the examples of the headers as C functions: examples.py OUTPUT.

Each header has one, indented in its opening comment after the line that begins with EXAMPLE. What it uses and
does not declare are the parameters here.
"""

import pathlib
import re
import sys

import header

PARAMETERS = {
    "base": "void",
    "llm": "wcuda_model model, wcuda_error error",
    "compute": "wcuda_context context, wcuda_buffer a, wcuda_buffer b, wcuda_buffer c, wcuda_error error",
    "backend": "wcuda_error error",
    "zctl": "wcuda_registry registry, wcuda_error error",
}


def example(part: str) -> str:
    text = (header.INCLUDE / f"worker_cuda/{part}.h").read_text()
    comment = text[: text.index("*/")]
    after = comment[comment.index(" * EXAMPLE: ") :].split("\n")[1:]
    lines = []
    for line in after:
        if line.startswith(" *   ") or (line == " *" and not lines):
            lines.append(line[5:])
        elif lines:
            break
    if len(lines) < 8:
        raise SystemExit(f"{part}.h: an example of {len(lines)} lines")
    return "\n".join(f"  {line}" for line in lines)


def main() -> int:
    text = ""
    for part, parameters in PARAMETERS.items():
        text += f"static int example_{part}({parameters}) {{\n{example(part)}\n  return 0;\n}}\n"
    pathlib.Path(sys.argv[1]).write_text(re.sub(r"[ \t]+\n", "\n", text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
