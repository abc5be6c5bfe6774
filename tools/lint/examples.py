"""Every public module and main type of the crate has an example.

Public modules are those that src/lib.rs exports; main types are those in the table of its front page. A module has an
example if its own documentation or that of an item in it has a Rust code block, which the doctests compile; a type has
one if its documentation, or that of a method, has one, or the module's own documentation names the type in its block.
"""

import pathlib
import re
import sys

SRC = pathlib.Path(__file__).parents[2] / "src"
DOC = re.compile(r"^\s*//[/!]")
FENCE = re.compile(r"^\s*//[/!] ?```(\w*)")


def files(module: str) -> list[pathlib.Path]:
    """The files of a public module: m.rs, or everything below m/."""
    for room in ("", "core", "llm", "compute"):
        folder = SRC / room / module
        if folder.with_suffix(".rs").exists():
            return [folder.with_suffix(".rs")]
        if folder.is_dir():
            return sorted(folder.rglob("*.rs"))
    return []


def examples(text: str) -> list[tuple[int, str]]:
    """First line and text of each Rust code block in doc comments."""
    found, begin, kind, lines = [], None, "", []
    for number, line in enumerate(text.split("\n")):
        fence = FENCE.match(line)
        if fence and begin is None:
            begin, kind, lines = number, fence.group(1), []
        elif fence:
            if kind in ("", "rust", "no_run", "should_panic"):
                found.append((begin, "\n".join(lines)))
            begin = None
        else:
            lines.append(line)
    return found


def item_lines(text: str, name: str) -> set[int]:
    """Lines of a type's documentation and of its inherent impl blocks."""
    lines, found = text.split("\n"), set()
    for number, line in enumerate(lines):
        if re.match(rf"pub (?:struct|enum|fn) {name}\b", line):
            above = number - 1
            while above >= 0 and (DOC.match(lines[above]) or lines[above].startswith("#")):
                found.add(above)
                above -= 1
        elif re.match(rf"impl(?:<[^{{]*>)? {name}\b", line):
            end = number
            while end < len(lines) and lines[end] != "}":
                found.add(end)
                end += 1
    return found


def main() -> int:
    front = (SRC / "lib.rs").read_text()
    exported = re.findall(r"^pub mod (\w+);", front, re.MULTILINE)
    for names in re.findall(r"^pub use self::(?:\w+)::(\{[^}]+\}|\w+);", front, re.MULTILINE):
        exported += [name for name in re.findall(r"\w+", names)]
    modules = sorted({name for name in exported if name != "ffi" and files(name)})
    rows = [line for line in front.split("\n") if line.startswith("//! | ") and "`" in line]
    types = {name for row in rows for name in re.findall(r"`(?:\w+::)?([A-Z]\w+)`", row.split("|")[2])}
    sources = {path: path.read_text() for path in SRC.rglob("*.rs") if "ffi" not in path.parts}

    missing = set()
    for module in modules:
        if not any(examples(sources[path]) for path in files(module)):
            missing.add(module)
    for name in types:
        has_example = False
        for text in sources.values():
            inside = item_lines(text, name)
            blocks = examples(text)
            of_module = [block for begin, block in blocks if text.split("\n")[begin].startswith("//!")]
            if any(begin in inside for begin, _ in blocks) or (inside and any(name in block for block in of_module)):
                has_example = True
        if not has_example:
            missing.add(name)
    found = [f"src: {name} has no example" for name in sorted(missing)]
    print("\n".join(found) or f"examples: {len(modules)} modules and {len(types)} types")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
