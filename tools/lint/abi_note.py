"""Every change of the public headers leaves a note in docs/ABI.md.

The last row of the table there carries the digest of all headers of the interface, comments and spacing
apart. Fails, and prints the digest to write, when the headers have another one.
"""

import hashlib
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[2]
INCLUDE = ROOT / "cuda/include"
HEADERS = ["worker_cuda.h"] + [f"worker_cuda/{name}.h" for name in ("base", "llm", "compute", "backend", "zctl")]


def digest(text: str) -> str:
    """Twelve hex digits over the tokens: rewording a comment does not change the digest."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"//[^\n]*", " ", text)
    tokens = re.findall(r"\w+|[^\w\s]", text.replace("\\\n", " "))
    return hashlib.sha256(" ".join(tokens).encode()).hexdigest()[:12]


def main() -> int:
    assert digest("int a ; /* x */") == digest("int  a;\n") != digest("int b;")
    current = digest("\n".join((INCLUDE / name).read_text() for name in HEADERS))
    rows = re.findall(r"^\|.*`([0-9a-f]{12})`.*\|$", (ROOT / "docs/ABI.md").read_text(), flags=re.M)
    if not rows or rows[-1] != current:
        noted = rows[-1] if rows else "none"
        print(
            f"the headers have digest `{current}`, the last row of docs/ABI.md has {noted}: "
            "add a row that says what changed, with this digest"
        )
        return 1
    print(f"abi: noted ({current})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
