"""Mutation tests of the native library: mutants.py --mutate PROGRAM --folder WORK [--seconds N] [--seed N] FILE…

universalmutator (PROGRAM is its `mutate`) writes the mutants of each FILE. In a copy of the tree below WORK one at a
time replaces its file, the tests are built, which compiles that file alone, and run: first the suites of the same room
(cuda/tests mirrors cuda/src), then all. A mutant that does not compile does not count. The sample is drawn evenly over
the files from the seed and ends with the time. Exits 1 if fewer than 90 % of the mutants die that are not listed as
equivalent in tools/dev/mutants.toml.
"""

import argparse
import collections
import dataclasses
import difflib
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).parents[2]
SHARE_KILLED_MIN = 0.9
CPU_TESTS = "-Gpu*:*/Gpu*"
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)


@dataclasses.dataclass
class Mutant:
    """One changed place of a file."""

    file: str
    line: int
    old: str
    new: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.old}  =>  {self.new}"


class Native:
    """The copy of the tree and its build."""

    def __init__(self, folder: pathlib.Path):
        self.tree, self.build = folder / "tree", folder / "build"
        self.seconds_of_all = 0.0

    def copy(self) -> None:
        """The files that git lists, those alone that changed, so that builds stay incremental."""
        listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                                check=True, capture_output=True, text=True).stdout  # fmt: skip
        wanted = {pathlib.Path(name) for name in listed.split("\0") if name}
        for path in wanted:
            source, target = ROOT / path, self.tree / path
            if not source.is_file() or (target.is_file() and source.read_bytes() == target.read_bytes()):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
            target.touch()
        for path in self.tree.rglob("*"):
            if path.is_file() and path.relative_to(self.tree) not in wanted:
                path.unlink()

    def configure(self) -> None:
        subprocess.run(["cmake", "-S", str(self.tree / "cuda"), "-B", str(self.build), "-G", "Ninja", "-DWCUDA_CUDA=OFF",
                        "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1", "-DWCUDA_BUILD_TESTS=ON"],
                       check=True, stdout=subprocess.DEVNULL)  # fmt: skip

    def compiles(self) -> bool:
        return subprocess.run(["cmake", "--build", str(self.build), "--target", "wcuda_tests"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0  # fmt: skip

    def passes(self, filter: str) -> bool:
        """False too if the tests crash, or take ten times as long as without a mutant."""
        command = [str(self.build / "tests/wcuda_tests"), f"--gtest_filter={filter}", "--gtest_brief=1", "--gtest_fail_fast"]
        try:
            done = subprocess.run(command, cwd=self.build, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, timeout=60 + 10 * self.seconds_of_all)  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def measure(self) -> None:
        if not self.compiles():
            sys.exit("mutants: the tests do not build")
        self.seconds_of_all = 3600
        begin = time.monotonic()
        if not self.passes(CPU_TESTS):
            sys.exit("mutants: the tests fail without a mutant")
        self.seconds_of_all = time.monotonic() - begin

    def kills(self, mutant: Mutant, filter: str) -> bool | None:
        """None if the mutant does not compile."""
        path = self.tree / mutant.file
        original = path.read_text()
        try:
            path.write_text(mutant.text)
            if not self.compiles():
                return None
            return not (self.passes(filter) and self.passes(CPU_TESTS))
        finally:
            path.write_text(original)


def suites_of_room(file: str) -> str:
    """A filter of the suites in the folder of cuda/tests that mirrors this file's; all where there is none."""
    folder = ROOT / "cuda/tests" / pathlib.Path(file).relative_to("cuda/src").parent
    names = {name for path in folder.glob("*_test.cpp")
             for name in re.findall(r"^TEST(?:_F|_P)?\(\s*(\w+)", path.read_text(), flags=re.M)}  # fmt: skip
    names = {name for name in names if not name.startswith("Gpu")}
    return ":".join(f"{name}.*:*/{name}.*" for name in sorted(names)) + ":" + CPU_TESTS if names else CPU_TESTS


def code(text: str) -> str:
    return re.sub(r"\s+", " ", COMMENT.sub(" ", text))


def mutants_of(file: str, program: str, folder: pathlib.Path) -> list[Mutant]:
    source = ROOT / file
    out = folder / "mutants" / file.replace("/", "_")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    subprocess.run([program, str(source), "cpp", "--noCheck", "--mutantDir", str(out)],
                   check=True, cwd=out, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    original = source.read_text()
    found = []
    for path in sorted(out.glob("*.mutant.*")):
        text = path.read_text()
        if code(text) == code(original):
            continue
        old, new = original.splitlines(), text.splitlines()
        for tag, begin, end, low, high in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if tag != "equal":
                changed = (" ".join(line.strip() for line in lines) for lines in (old[begin:end], new[low:high]))
                found.append(Mutant(file, begin + 1, *changed, text))
                break
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutate", required=True)
    parser.add_argument("--folder", required=True, type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()

    listed = tomllib.loads((ROOT / "tools/dev/mutants.toml").read_text()).get("native", [])
    equivalent = {(row["file"], row["old"], row["new"]) for row in listed}
    native = Native(args.folder)
    native.copy()
    native.configure()
    native.measure()
    draw = random.Random(args.seed)
    queues = []
    for file in args.files:
        mutants = mutants_of(file, args.mutate, args.folder)
        draw.shuffle(mutants)
        queues.append((suites_of_room(file), mutants))

    end = time.monotonic() + args.seconds
    counts: dict[str, collections.Counter] = {file: collections.Counter() for file in args.files}
    survivors = []
    while any(mutants for _, mutants in queues) and time.monotonic() < end:
        for filter, mutants in queues:
            if not mutants or time.monotonic() >= end:
                continue
            mutant = mutants.pop()
            if (mutant.file, mutant.old, mutant.new) in equivalent:
                continue
            killed = native.kills(mutant, filter)
            kind = {None: "invalid", True: "killed", False: "survived"}[killed]
            counts[mutant.file][kind] += 1
            if killed is False:
                survivors.append(mutant)
                print(f"survived: {mutant}", flush=True)

    total: collections.Counter = sum(counts.values(), collections.Counter())
    for file, count in counts.items():
        print(f"{file}: {count['killed']} killed, {count['survived']} survived, {count['invalid']} do not compile")
    judged = total["killed"] + total["survived"]
    share = total["killed"] / max(judged, 1)
    print(f"native mutants: {total['killed']} of {judged} killed ({share:.0%}), at least {SHARE_KILLED_MIN:.0%} wanted")
    return 0 if judged and share >= SHARE_KILLED_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
