#!/usr/bin/env python3
"""Writes tests/data/templates.json: what `transformers` renders for the templates beside it.

Run: python tools/golden/templates.py MODEL.gguf   (needs transformers and jinja2; gguf for MODEL)

Each case of the file is a template's name, what it is given, and the text or the error. The templates are
tests/data/templates/NAME.jinja, written for this in the shape of well-known ones; "smollm2" is the one in
MODEL.
"""

import datetime
import json
import pathlib
import sys

import gguf
import transformers.utils.chat_template_utils as chat

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data"
# 2024-07-26 13:05:09 UTC; the clock that the test passes in
NOW = datetime.datetime(2024, 7, 26, 13, 5, 9)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

USER = {"role": "user", "content": "What is 2 + 2?"}
SYSTEM = {"role": "system", "content": "You are terse.\n"}
ANSWER = {"role": "assistant", "content": "4"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city: \"now\" & <soon>, für alle 🌦",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "City's name"},
                "days": {"type": "integer", "default": 1, "enum": [1, 2, 3]},
                "detail": {"type": "number", "default": 0.5},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {}}}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call00001",
            "type": "function",
            "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "detail": 1e-7, "x": None}},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": "{\"temp\": 21.5}"}
THOUGHT = {"role": "assistant", "content": "<think>\nEasy.\n</think>\n\n4"}
REASONED = {"role": "assistant", "reasoning_content": "\nTwo and two.\n", "content": "\n4\n"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "See "}, {"type": "image"}, {"type": "text", "text": "this?"}]}

CONVERSATIONS = {
    "one": {"messages": [USER]},
    "prompted": {"messages": [USER], "add_generation_prompt": True},
    "system": {"messages": [SYSTEM, USER, ANSWER, USER], "add_generation_prompt": True},
    "empty": {"messages": []},
    "assistant first": {"messages": [ANSWER, USER]},
    "two users": {"messages": [USER, USER]},
    "tools": {"messages": [USER], "tools": [WEATHER, CLOCK], "add_generation_prompt": True},
    "tools and system": {"messages": [SYSTEM, USER], "tools": [WEATHER]},
    "call": {"messages": [USER, CALL, RESULT], "tools": [WEATHER], "add_generation_prompt": True},
    "call and answer": {"messages": [USER, CALL, RESULT, RESULT, ANSWER, USER], "tools": [WEATHER]},
    "thought": {"messages": [USER, THOUGHT, USER], "add_generation_prompt": True},
    "reasoned": {"messages": [USER, REASONED], "variables": {"enable_thinking": True}},
    "no thinking": {"messages": [USER], "add_generation_prompt": True, "variables": {"enable_thinking": False}},
    "parts": {"messages": [PARTS], "add_generation_prompt": True},
    "documents": {
        "messages": [USER],
        "documents": [{"title": "A", "text": "first"}, {"title": "B", "text": "it's\n\"second\""}],
        "variables": {"numbers": [1, 2.5, -0.0, 1e22, 1e-5, 12345678901234567890], "flag": True, "date_string": "1 May 2025"},
    },
    "white space": {"messages": [{"role": "user", "content": "  \n a\tb \n"}, {"role": "assistant", "content": " x "}]},
}


class FixedClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def template_of(model: str) -> str:
    """Reads the metadata only: the tensors may be missing."""
    return gguf.GGUFReader(model).fields["tokenizer.chat_template"].contents()


def render(template: str, given: dict) -> dict:
    given = json.loads(json.dumps(given))
    try:
        texts, _ = chat.render_jinja_template(
            conversations=[given["messages"]],
            tools=given.get("tools"),
            documents=given.get("documents"),
            chat_template=template,
            add_generation_prompt=given.get("add_generation_prompt", False),
            **TOKENS,
            **given.get("variables", {}),
        )
        return {"text": texts[0]}
    except Exception as error:
        return {"error": str(error)}


def main() -> int:
    chat.datetime = FixedClock
    sources = {path.stem: path.read_text() for path in sorted((DATA / "templates").glob("*.jinja"))}
    sources["smollm2"] = template_of(sys.argv[1])
    (DATA / "templates" / "smollm2.jinja").write_text(sources["smollm2"])
    cases = [
        {"template": name, "case": case, **render(source, given)}
        for name, source in sources.items()
        for case, given in CONVERSATIONS.items()
    ]
    lines = ",\n".join(json.dumps(case) for case in cases)
    inputs = ",\n".join(f"{json.dumps(case)}: {json.dumps(given)}" for case, given in CONVERSATIONS.items())
    (DATA / "templates.json").write_text(
        f'{{\n"tokens": {json.dumps(TOKENS)},\n"inputs": {{\n{inputs}\n}},\n"cases": [\n{lines}\n]\n}}\n'
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
