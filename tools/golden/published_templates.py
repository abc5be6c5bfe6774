#!/usr/bin/env python3
"""Renders published chat templates with `transformers`, for the test of the same name.

Run: python tools/golden/published_templates.py FOLDER OUT.json   (needs transformers and jinja2)

FOLDER holds NAME.jinja files: models/templates of llama.cpp, which the source package of llama-cpp-python
carries. OUT.json has the sources and what they render; it is read by tests/text_templates.rs when
WCUDA_PUBLISHED_TEMPLATES names it. The templates are under their models' licences, so only names and
digests are committed, as tests/data/published_templates.json.
"""

import hashlib
import itertools
import json
import pathlib
import sys

import templates
from templates import ANSWER, CALL, CLOCK, DATA, REASONED, RESULT, SYSTEM, USER, WEATHER


def conversations() -> dict[str, dict]:
    """Each combination of tools, a system message, reasoning and a generation prompt."""
    found = {}
    for tools, system, reasoning, prompt in itertools.product([False, True], repeat=4):
        messages = [SYSTEM] * system + [USER]
        if tools:
            messages += [CALL, RESULT]
        messages += [REASONED if reasoning else ANSWER, USER]
        names = [name for name, on in [("tools", tools), ("system", system), ("reasoning", reasoning), ("prompt", prompt)] if on]
        found[" ".join(names) or "plain"] = {
            "messages": messages,
            **({"tools": [WEATHER, CLOCK]} if tools else {}),
            **({"variables": {"enable_thinking": True}} if reasoning else {}),
            "add_generation_prompt": prompt,
        }
    return found


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def main() -> int:
    templates.chat.datetime = templates.FixedClock
    inputs = conversations()
    published, record = [], []
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.jinja")):
        source = path.read_text()
        cases = {case: templates.render(source, given).get("text") for case, given in inputs.items()}
        published.append({"name": path.stem, "source": source, "cases": cases})
        record.append({
            "name": path.stem,
            "sha256": digest(source),
            "refused": sum(text is None for text in cases.values()),
            "rendered_sha256": digest(json.dumps(cases)),
        })  # fmt: skip
    pathlib.Path(sys.argv[2]).write_text(json.dumps({"inputs": inputs, "templates": published}))
    lines = ",\n".join(json.dumps(row) for row in record)
    (DATA / "published_templates.json").write_text(f"[\n{lines}\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
