"""Mutation tests of the native library, in three commands.

mutants.py list --mutate PROGRAM --list LIST FILE…
    universalmutator (PROGRAM is its `mutate`) writes the mutants of each FILE; LIST gets one JSON line per mutant.
mutants.py run --list LIST --build FOLDER --work FOLDER [--jobs N] [--seconds N] [--seed N] [--results FILE]
    Runs a sample of LIST until the time is over. The sample is drawn evenly over the rooms (folders of cuda/src) from
    the seed. Exits 1 if fewer than 90 % of the mutants die that are not equivalent.
mutants.py check
    Reads tools/dev/mutants.toml, and checks that the code still has each line it names. Part of ./dev lint.

FOLDER is a finished build of the host configuration (Ninja), each file of the library alone, and stays unchanged: a job
compiles the changed file, links the tests with that object in front of the archive, and runs them: first the suites of
the same room (cuda/tests mirrors cuda/src), then all others. A mutant that does not compile does not count. Neither does
one that is equivalent: its object is identical to the original's, or tools/dev/mutants.toml lists it with the reason.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import itertools
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARE_KILLED_MIN = 0.9
CPU_TESTS = "-Gpu*:*/Gpu*"
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
OUTSIDE_A_LOOP = re.compile(r" {,2}(break|continue);")  # by its indentation: does not compile
CORES_PER_JOB = 2
MEMORY_KIB_MAX = 16 << 20  # address space of a test program


@dataclasses.dataclass(frozen=True)
class Mutant:
    """Lines [line, line + count) of a file, counted from 1, replaced by others."""

    file: str
    line: int
    count: int
    lines: tuple[str, ...]
    old: str  # what was replaced, without indentation
    new: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.old}  =>  {self.new}"

    def room(self) -> str:
        return str(pathlib.Path(self.file).parent.relative_to("cuda/src"))

    def text(self) -> str:
        lines = (ROOT / self.file).read_text().splitlines()
        lines[self.line - 1 : self.line - 1 + self.count] = self.lines
        return "\n".join(lines) + "\n"


# --- list


def code(text: str) -> str:
    return re.sub(r"\s+", " ", COMMENT.sub(" ", text))


def difference(file: str, original: str, text: str) -> Mutant:
    old, new = original.splitlines(), text.splitlines()
    first = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(old, new)))
    shorter = min(len(old), len(new)) - first
    last = 0
    while last < shorter and old[-1 - last] == new[-1 - last]:
        last += 1
    if first + last == len(old):  # an insertion: with the line before it
        first -= 1
    removed, added = old[first : len(old) - last], new[first : len(new) - last]
    joined = (" ".join(line.strip() for line in lines) for lines in (removed, added))
    return Mutant(file, first + 1, len(removed), tuple(added), *joined)


def mutants_of(file: str, program: str, folder: pathlib.Path) -> list[Mutant]:
    source = ROOT / file
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    subprocess.run([program, str(source), "cpp", "--noCheck", "--mutantDir", str(folder)],
                   check=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    original = source.read_text()
    seen, found = {code(original)}, []
    for path in sorted(folder.glob("*.mutant.*")):
        text = path.read_text()
        if code(text) in seen:
            continue
        seen.add(code(text))
        mutant = difference(file, original, text)
        if not (mutant.lines and OUTSIDE_A_LOOP.fullmatch(mutant.lines[-1])):
            found.append(mutant)
    shutil.rmtree(folder)
    return found


def command_list(args: argparse.Namespace) -> int:
    args.list.parent.mkdir(parents=True, exist_ok=True)
    with args.list.open("w") as out:
        for file in args.files:
            for mutant in mutants_of(file, args.mutate, args.list.resolve().with_suffix(".mutants")):
                out.write(json.dumps(dataclasses.asdict(mutant)) + "\n")
    return 0


# --- run


class Unfinished(Exception):
    """The time is over."""


class Build:
    """A finished build of the library and its tests."""

    def __init__(self, folder: pathlib.Path, end: float):
        self.folder, self.end = folder, end
        rows = json.loads((folder / "compile_commands.json").read_text())
        self.compile_of = {row["file"]: shlex.split(row["command"]) for row in rows if row["file"].endswith(".cpp")}
        commands = subprocess.run(["ninja", "-C", str(folder), "-t", "commands", "tests/wcuda_tests"],
                                  check=True, capture_output=True, text=True).stdout  # fmt: skip
        self.link = commands.splitlines()[-1]
        self.seconds: dict[str, float] = {}

    def compile(self, file: str, source: pathlib.Path, output: pathlib.Path) -> bool:
        """With the options of that file; a mutant that gets a warning is a mutant too."""
        command = list(self.compile_of[str(ROOT / file)])
        command[command.index("-o") + 1] = str(output)
        command[command.index("-c") + 1] = str(source)
        return subprocess.run([*command, "-w"], cwd=self.folder, env=os.environ | {"CCACHE_DISABLE": "1"},
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0  # fmt: skip

    def link_with(self, object: pathlib.Path, program: pathlib.Path) -> bool:
        command = self.link.replace("-o tests/wcuda_tests", f"-o {shlex.quote(str(program))}")
        command = command.replace(" libworker_cuda.a", f" {shlex.quote(str(object))} libworker_cuda.a", 1)
        return subprocess.run(command, shell=True, cwd=self.folder, env=os.environ | {"CCACHE_DISABLE": "1"},
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0  # fmt: skip

    def passes(self, program: pathlib.Path, filter: str) -> bool:
        """False too if the tests crash, or take ten times as long as without a mutant."""
        limits = f'ulimit -v {MEMORY_KIB_MAX}; ulimit -c 0; exec "$@"'
        command = ["sh", "-c", limits, "sh", str(program), f"--gtest_filter={filter}",
                   "--gtest_brief=1", "--gtest_fail_fast"]  # fmt: skip
        limit = 60 + 10 * self.seconds.get(filter, self.seconds.get(CPU_TESTS, 120))
        process = subprocess.Popen(command, cwd=program.parent, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, process_group=0)  # fmt: skip
        try:
            return process.wait(min(limit, max(self.end - time.monotonic(), 0))) == 0
        except subprocess.TimeoutExpired:
            if time.monotonic() >= self.end:
                raise Unfinished from None
            return False
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def filters_of_room(room: str) -> tuple[str, ...]:
    """The suites in the folder of cuda/tests that mirrors this one, and all others; one filter where there is none."""
    names = {name for path in (ROOT / "cuda/tests" / room).glob("*_test.cpp")
             for name in re.findall(r"^TEST(?:_F|_P)?\(\s*(\w+)", path.read_text(), flags=re.M)}  # fmt: skip
    suites = ":".join(f"{name}.*:*/{name}.*" for name in sorted(names) if not name.startswith("Gpu"))
    return (f"{suites}{CPU_TESTS}", f"{CPU_TESTS}:{suites}") if suites else (CPU_TESTS,)


class Jobs:
    """Judges mutants, several at a time, each on cores and in a folder of its own."""

    def __init__(self, build: Build, work: pathlib.Path, count: int):
        self.build, self.work, self.count = build, work, count
        self.slot = threading.local()
        self.slots = list(range(count))
        self.lock = threading.Lock()

    def start(self) -> None:
        with self.lock:
            index = self.slots.pop()
        self.slot.folder = self.work / f"job-{index:03}"
        self.slot.originals = {}
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[(index + i) % len(cores)] for i in range(CORES_PER_JOB)})

    def measure(self, mutant: Mutant, filter: str) -> None:
        """The time of these tests with the unchanged file of a mutant: they must pass."""
        folder = self.slot.folder
        program = folder / "run" / "wcuda_tests"
        (folder / "run").mkdir(parents=True, exist_ok=True)
        self.original(mutant.file)
        if not self.build.link_with(folder / "original.o", program):
            raise RuntimeError("the tests do not link")
        begin = time.monotonic()
        if not self.build.passes(program, filter):
            raise RuntimeError(f"the tests fail without a mutant: {filter}")
        self.build.seconds[filter] = time.monotonic() - begin

    def original(self, file: str) -> bytes:
        folder, name = self.slot.folder, pathlib.Path(file).name
        if file not in self.slot.originals:
            (folder / name).write_text((ROOT / file).read_text())
            self.build.compile(file, folder / name, folder / "original.o")
            self.slot.originals[file] = (folder / "original.o").read_bytes()
        return self.slot.originals[file]

    def judge(self, mutant: Mutant) -> str:
        folder, name = self.slot.folder, pathlib.Path(mutant.file).name
        shutil.rmtree(folder / "run", ignore_errors=True)
        (folder / "run").mkdir(parents=True)
        original = self.original(mutant.file)
        (folder / name).write_text(mutant.text())
        if not self.build.compile(mutant.file, folder / name, folder / "mutant.o"):
            return "invalid"
        if (folder / "mutant.o").read_bytes() == original:
            return "equivalent"
        program = folder / "run" / "wcuda_tests"
        if not self.build.link_with(folder / "mutant.o", program):
            return "invalid"
        passed = all(self.build.passes(program, filter) for filter in filters_of_room(mutant.room()))
        return "survived" if passed else "killed"


def listed_as_equivalent() -> set[tuple[str, str, str]]:
    """File, old and new line of tools/dev/mutants.toml; each old line must still be there, each row have its reason."""
    try:
        tables = tomllib.loads((ROOT / "tools/dev/mutants.toml").read_text())
        rows = tables["native"]
        for row in rows:
            _ = row["file"], row["old"], row["new"], row["reason"]
        for row in tables["crate"]:
            _ = re.compile(row["name"]), row["reason"]
    except (tomllib.TOMLDecodeError, KeyError, re.error) as error:
        sys.exit(f"mutants.toml: {error!r}")
    for row in rows:
        if row["old"] not in " ".join(line.strip() for line in (ROOT / row["file"]).read_text().splitlines()):
            sys.exit(f"mutants.toml: {row['file']} has no line {row['old']!r}")
    return {(row["file"], row["old"], row["new"]) for row in rows}


def sample(mutants: list[Mutant], seed: int):
    """One of each room in turn, in the order that the seed gives."""
    draw = random.Random(seed)
    rooms = collections.defaultdict(list)
    for mutant in mutants:
        rooms[mutant.room()].append(mutant)
    for queue in rooms.values():
        draw.shuffle(queue)
    while any(rooms.values()):
        yield from [queue.pop() for queue in rooms.values() if queue]


def report(counts: dict[str, collections.Counter]) -> int:
    total: collections.Counter = collections.Counter()
    for room, count in sorted(counts.items()):
        total += count
        judged = count["killed"] + count["survived"]
        print(f"{room}: {count['killed']} of {judged} killed ({count['killed'] / max(judged, 1):.0%}), "
              f"{count['equivalent']} equivalent, {count['invalid']} do not compile")  # fmt: skip
    judged = total["killed"] + total["survived"]
    share = total["killed"] / max(judged, 1)
    print(f"native mutants: {total['killed']} of {judged} killed ({share:.0%}), at least {SHARE_KILLED_MIN:.0%} wanted")
    return 0 if judged and share >= SHARE_KILLED_MIN else 1


def command_run(args: argparse.Namespace) -> int:
    mutants = [Mutant(**{**row, "lines": tuple(row["lines"])}) for row in map(json.loads, args.list.open())]
    equivalent = listed_as_equivalent()
    end = time.monotonic() + args.seconds
    build = Build(args.build.resolve(), end)
    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    lock = threading.Lock()
    jobs = Jobs(build, args.work.resolve(), args.jobs)

    def judge(mutant: Mutant) -> None:
        begin = time.monotonic()
        if begin >= end:
            return
        known = (mutant.file, mutant.old, mutant.new) in equivalent
        result = "equivalent" if known else jobs.judge(mutant)
        with lock:
            counts[mutant.room()][result] += 1
            if result == "survived":
                print(f"survived: {mutant}", flush=True)
            if args.results:
                row = {"room": mutant.room(), "result": result, "seconds": round(time.monotonic() - begin, 1)}
                with args.results.open("a") as out:
                    out.write(json.dumps(row | dataclasses.asdict(mutant)) + "\n")

    with concurrent.futures.ThreadPoolExecutor(args.jobs, initializer=jobs.start) as pool:
        tasks = [pool.submit(jobs.measure, mutants[0], CPU_TESTS)]
        for mutant in {mutant.room(): mutant for mutant in mutants}.values():
            tasks.append(pool.submit(jobs.measure, mutant, filters_of_room(mutant.room())[0]))
        tasks += [pool.submit(judge, mutant) for mutant in sample(mutants, args.seed)]
        for done in concurrent.futures.as_completed(tasks):
            if done.exception() and not isinstance(done.exception(), Unfinished):
                pool.shutdown(cancel_futures=True)
                raise done.exception()
    return report(counts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    list_parser = commands.add_parser("list")
    list_parser.add_argument("--mutate", required=True)
    list_parser.add_argument("--list", required=True, type=pathlib.Path)
    list_parser.add_argument("files", nargs="+")
    run_parser = commands.add_parser("run")
    run_parser.add_argument("--list", required=True, type=pathlib.Path)
    run_parser.add_argument("--build", required=True, type=pathlib.Path)
    run_parser.add_argument("--work", required=True, type=pathlib.Path)
    run_parser.add_argument("--jobs", type=int, default=os.cpu_count())
    run_parser.add_argument("--seconds", type=float, default=1800)
    run_parser.add_argument("--seed", type=int, default=1)
    run_parser.add_argument("--results", type=pathlib.Path)
    commands.add_parser("check")
    args = parser.parse_args()
    if args.command == "check":
        return 0 if listed_as_equivalent() else 1
    return command_list(args) if args.command == "list" else command_run(args)


if __name__ == "__main__":
    sys.exit(main())
