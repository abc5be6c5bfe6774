"""Joins the turns of ours and of a peer: bench_report.py RAW_FOLDER E2E_JSON; prints the table.

RAW_FOLDER holds ours-SHAPE-MIX-TURN.json (e2e_bench --json) and peer-SHAPE-MIX-TURN-KIND.jsonl (llama-bench and
llama-batched-bench). A row's value is the median over turns, its spread (largest - smallest) / median; the peer's is
the median over turns of its better build. A figure of the peer that was not measured here stays the one of e2e_bench.
"""

import collections
import json
import pathlib
import re
import statistics
import sys

LESS_IS_BETTER = ("s", "us")
PEER_NAME = re.compile(r"peer-(\w+?)-(\w+)-(\d+)-(decode|prefill|prefill-cublas|streams)\.jsonl")


def peer_rows(path: pathlib.Path):
    """(work, tokens a second) of each line."""
    shape, mix, _, kind = PEER_NAME.fullmatch(path.name).groups()
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if kind == "streams":
            yield f"{shape} {mix} streams {row['pl']}", row["speed_tg"]
        elif kind == "decode":
            yield f"{shape} {mix} decode at {row['n_depth']}", row["avg_ts"]
        else:
            yield f"{shape} {mix} prefill {row['n_prompt']}", row["avg_ts"]


def read_peer(raw: pathlib.Path) -> dict[str, float]:
    builds: dict = collections.defaultdict(lambda: collections.defaultdict(list))
    for path in sorted(raw.glob("peer-*.jsonl")):
        for work, value in peer_rows(path):
            builds[work][PEER_NAME.fullmatch(path.name).group(4)].append(value)
    return {work: max(map(statistics.median, kinds.values())) for work, kinds in builds.items()}


def read_ours(raw: pathlib.Path):
    """The last header, and for each work its rows of all turns."""
    header, rows = {}, collections.defaultdict(list)
    for path in sorted(raw.glob("ours-*.json")):
        report = json.loads(path.read_text())
        header = {key: value for key, value in report.items() if key != "rows"}
        for row in report["rows"]:
            rows[row["work"]].append(row)
    return header, rows


def joined(turns: list[dict], measured_peer: float | None) -> dict:
    values = [row["value"] for row in turns]
    row = dict(turns[0], value=statistics.median(values))
    less = row["unit"] in LESS_IS_BETTER
    row["peer"] = measured_peer or row["peer"]

    def share(of: float | None) -> float | None:
        return of and (of / row["value"] if less else row["value"] / of)

    row["share"], row["ratio"] = share(row["limit"]), share(row["peer"])
    row["spread"] = (max(values) - min(values)) / row["value"]
    row["turns"] = len(values)
    row["peer_is_measured"] = measured_peer is not None
    return row


def table(header: dict, rows: list[dict]) -> str:
    def cell(value: float | None, form: str | None = None) -> str:
        if value is None:
            return "-"
        return format(value, form or (".0f" if value >= 1000 else ".4g"))

    lines = [f"{header.get('device')} ({header.get('backend')}), worker-cuda {header.get('version')}; median over turns"]
    lines.append(f"{'':<36} {'value':>10} {'unit':<6} {'spread':>7} {'limit':>9} {'share':>6} {'peer':>9} {'ratio':>6}")
    for row in rows:
        mark = " " if row["peer"] is None or row["peer_is_measured"] else "*"
        lines.append(
            f"{row['work']:<36} {cell(row['value']):>10} {row['unit']:<6} {row['spread']:>7.1%} "
            f"{cell(row['limit']):>9} {cell(row['share'], '.0%'):>6} {cell(row['peer']):>9} "
            f"{cell(row['ratio'], '.2f'):>6}{mark}".rstrip()
        )
    if any(line.endswith("*") for line in lines):
        lines.append("* the peer's figure is of another day")
    return "\n".join(lines)


def main() -> int:
    raw, target = map(pathlib.Path, sys.argv[1:])
    header, ours = read_ours(raw)
    peer = read_peer(raw)
    rows = [joined(turns, peer.get(work)) for work, turns in ours.items()]
    lines = ",\n ".join(json.dumps(row) for row in rows)
    target.write_text(json.dumps(header)[:-1] + f', "rows": [\n {lines}\n]}}\n')
    print(table(header, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
