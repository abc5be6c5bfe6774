"""What a test run reports, in few lines.

report_tests.py ctest FOLDER        the skipped tests by reason, a line each, and the failed tests with their assertions;
                                fails if a test failed. FOLDER has tests.xml (ctest --output-junit) and tests.log
                                (ctest --output-log), which alone names a time-out or a signal
report_tests.py skips LOG           the lines "skipped: REASON" of a log of cargo test, counted
report_tests.py failures LOG        the failed tests in the log of a step, with their assertions; else the log's end
"""

import collections
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

LINES_PER_TEST = 40
TESTS_SHOWN = 25
LINES_OF_END = 80
FAILED_HEADING = "== failed tests"
GTEST_NOISE = re.compile(r"^(Running main|Note: Google Test|\[(=+|-+| RUN +|  PASSED  |  FAILED  )\]|\s*\d+ FAILED TEST)")


def shortened(lines: list[str]) -> list[str]:
    """At most LINES_PER_TEST lines: the first ones, which name the assertion, and the last."""
    if len(lines) <= LINES_PER_TEST:
        return lines
    kept = LINES_PER_TEST // 2
    return [*lines[:kept], f"… {len(lines) - 2 * kept} lines …", *lines[-kept:]]


def skip_reason(case: ElementTree.Element) -> str:
    """GoogleTest prints "FILE:LINE: Skipped", then the reason. Other programs exit with 77 without a device."""
    match = re.search(r": Skipped\n(?:\n*)([^\n\[]*)", case.findtext("system-out") or "")
    if match and match.group(1).strip():
        return match.group(1).strip()
    if case.get("status") == "disabled":
        return "disabled: another test runs it in a process of its own"
    skipped = case.find("skipped")
    return "no device: " + skipped.get("message", "") if skipped is not None else "no reason given"


def assertions(output: str) -> list[str]:
    """A failed test's output without GoogleTest's frame."""
    lines = [line for line in output.splitlines() if line.strip() and not GTEST_NOISE.match(line)]
    return shortened(lines or output.splitlines())


def endings(log: str) -> dict[str, str]:
    """How ctest says that each failed test ended: "Failed", "Timeout", "Exception: SegFault"."""
    return dict(re.findall(r"Test +#\d+: (\S+) \.*\*\*\*(.*?) +[\d.]+ sec", log))


def ctest(folder: pathlib.Path) -> tuple[list[str], bool]:
    """The report of a ctest run, and whether all tests passed."""
    log = (folder / "tests.log").read_text(errors="replace")
    ended = endings(log)
    skipped: collections.Counter[str] = collections.Counter()
    failed = []
    cases = list(ElementTree.parse(folder / "tests.xml").getroot().iter("testcase"))
    for case in cases:
        output = case.findtext("system-out") or ""
        if case.get("status") == "fail":
            failed.append((case.get("name"), ended.get(case.get("name"), "failed"), assertions(output)))
        elif case.get("status") in ("notrun", "disabled") or case.find("skipped") is not None:
            skipped[skip_reason(case)] += 1
    lines = skip_lines(skipped)
    lines.append(f"{len(cases) - len(failed) - skipped.total()} passed, {len(failed)} failed, {skipped.total()} skipped")
    if failed:
        lines.append(FAILED_HEADING)
    for name, how, text in failed[:TESTS_SHOWN]:
        lines += [f"-- {name}: {how}", *text]
    if len(failed) > TESTS_SHOWN:
        lines.append(f"and {len(failed) - TESTS_SHOWN} more: {', '.join(name for name, *_ in failed[TESTS_SHOWN:])}")
    if not cases:
        lines += log.splitlines()[-LINES_OF_END:]
    return lines, bool(cases) and not failed


def skip_lines(skipped: "collections.Counter[str]") -> list[str]:
    return [f"skipped {count}: {reason}" for reason, count in skipped.most_common()]


def skips(text: str) -> list[str]:
    return skip_lines(collections.Counter(re.findall(r"^skipped: (.*)$", text, flags=re.M)))


def cargo_failures(text: str) -> list[str]:
    """Of each test binary: the output of each failed test, between "failures:" and the list of their names."""
    found = []
    text = re.sub(r"^stack backtrace:\n(?: +.*\n)*(?:note: .*\n)?", "", text, flags=re.M)
    for block in re.findall(r"^failures:\n\n(---- .*?)^failures:\n", text, flags=re.M | re.S):
        for test in re.split(r"^(?=---- \S)", block, flags=re.M):
            if test.strip():
                found += shortened([line for line in test.splitlines() if line.strip()])
    return found


def failures(text: str) -> list[str]:
    """The part of a failed step's log that says what failed."""
    if FAILED_HEADING in text:
        return text[text.rindex(FAILED_HEADING) :].splitlines()
    end = text.splitlines()[-LINES_OF_END:]
    found = cargo_failures(text)
    found += [line for test in re.findall(r"^(?:FAIL|ERROR): .*?(?=^=====|^Ran )", text, flags=re.M | re.S)
              for line in shortened(test.splitlines())]  # fmt: skip
    return [FAILED_HEADING, *found] if found else end


def main() -> int:
    command, path = sys.argv[1], pathlib.Path(sys.argv[2])
    if command == "ctest":
        lines, passed = ctest(path)
        print("\n".join(lines))
        return 0 if passed else 1
    text = path.read_text(errors="replace")
    for line in skips(text) if command == "skips" else failures(text):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
