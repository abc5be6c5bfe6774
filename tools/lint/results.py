"""The index of bench/results: it has every file there, and no other."""

import pathlib
import re
import sys

FOLDER = pathlib.Path(__file__).parents[2] / "bench" / "results"


def main() -> int:
    rows = [line.split("|")[1] for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    there = {str(path.relative_to(FOLDER)) for path in FOLDER.glob("*/*")}
    found = [f"bench/results/{name}: not in README.md" for name in sorted(there - set(named))]
    found += [f"bench/results/README.md: there is no {name}" for name in sorted(set(named) - there)]
    found += [f"bench/results/README.md: {name} is there twice" for name in sorted({n for n in named if named.count(n) > 1})]
    print("\n".join(found) or f"results: {len(there)} files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
