"""Every change of the public header leaves a note in docs/ABI.md.

The last row of the table there carries the digest of the header, comments and spacing apart; a header
whose digest is another one lacks its row. Prints the digest to write.
"""

import hashlib
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[2]


def digest(text: str) -> str:
    """Twelve hex digits over the header's tokens: a comment reworded is no change of the ABI."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"//[^\n]*", " ", text)
    tokens = re.findall(r"\w+|[^\w\s]", text.replace("\\\n", " "))
    return hashlib.sha256(" ".join(tokens).encode()).hexdigest()[:12]


def main() -> int:
    assert digest("int a ; /* x */") == digest("int  a;\n") != digest("int b;")
    current = digest((ROOT / "cuda/include/worker_cuda.h").read_text())
    rows = re.findall(r"^\|.*`([0-9a-f]{12})`.*\|$", (ROOT / "docs/ABI.md").read_text(), flags=re.M)
    if not rows or rows[-1] != current:
        noted = rows[-1] if rows else "none"
        print(
            f"worker_cuda.h has digest `{current}`, the last row of docs/ABI.md has {noted}: "
            "add a row that says what changed, with this digest"
        )
        return 1
    print(f"abi: noted ({current})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
