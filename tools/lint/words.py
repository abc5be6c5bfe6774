"""Words and whitespace of every text file.

Unfinished work is not committed as a remark, no path of somebody's machine is, and lines end cleanly.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[2]
WORDS = re.compile(r"\b(TODO|FIXME|XXX|HACK|WIP)\b|(?<![\w.])/(work|root|home)/\w")
# Where the words themselves are the subject, and bytes that are no text.
EXEMPT = {"tools/lint/words.py"}
BINARY = {".gguf", ".bin", ".npz", ".npy", ".gz", ".png", ".model"}


# What builds and downloads leave, which git ignores too.
OUTPUTS = re.compile(r"^(\.git|target|build|build-.*|\.cache|\.gpu-pack|\.peer|__pycache__)$")


def text_files(folder: pathlib.Path):
    for path in sorted(folder.iterdir()):
        if OUTPUTS.match(path.name):  # .git is a file in a linked worktree
            continue
        if path.is_dir():
            yield from text_files(path)
        elif path.is_file():
            yield path


def main() -> int:
    found = []
    for path in text_files(ROOT):
        name = str(path.relative_to(ROOT))
        if name in EXEMPT or path.suffix in BINARY or "corpus" in path.parts or "data" in path.parts:
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.split("\n"), 1):
            if match := WORDS.search(line):
                found.append(f"{name}:{number}: {match.group(0)}")
            if line != line.rstrip():
                found.append(f"{name}:{number}: space at the end of the line")
        if text and not text.endswith("\n"):
            found.append(f"{name}: no newline at the end")
    print("\n".join(found) or "words: clean")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
