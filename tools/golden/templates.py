#!/usr/bin/env python3
"""Writes tests/data/templates.json: what `transformers` renders for the templates next to it, and
tests/data/template_expressions.json: what it prints for single expressions.

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


# Each filter and test of Jinja on one value of each kind, and operators on pairs of them.
VALUES = [
    "missing", "none", "true", "''", "' aB\\n<c> '", "('<x>'|safe)", "0", "-7", "2.5", "[]", "[3, 1, 2]", "['b', 'A', 'a']",
    "(1, 'x')", "{}", "{'b': 1, 'a': 2}", "range(3)|list", "[{'k': 1, 'v': 'x'}, {'k': 2}]",
]  # fmt: skip
FILTERS = [
    "abs", "attr('x')", "batch(2)|list", "batch(2, 'f')|list", "capitalize", "count", "default('d')", "d('d', true)",
    "dictsort", "dictsort(by='value')", "e", "escape ~ '<'", "first", "float", "float(1.5)", "format(1)",
    "indent", "indent(2, true)", "int", "int(3)", "items|list", "join", "join('<')", "join(', ', attribute='k')", "last",
    "length", "list", "lower", "map('upper')|list", "map(attribute='k')|list", "map(attribute='v', default='-')|list", "max",
    "min", "reject('none')|list", "rejectattr('v')|list", "replace('a', '<')", "replace('', '-')", "reverse|list", "round",
    "safe", "safe + '<'", "select|list", "selectattr('k', 'equalto', 1)|list",
    "selectattr('v', 'defined')|list", "slice(2)|list", "sort", "sort(reverse=true)", "sort(attribute='k')", "string",
    "string + '<'", "sum", "title", "tojson", "tojson(indent=2)", "trim", "trim('<')", "unique|list",
    "upper", "split", "lines", "zip", "bool", "string|length", "forceescape", "nothing",
]  # fmt: skip
TESTS = [
    "boolean", "callable", "defined", "divisibleby(2)", "eq(0)", "equalto('')", "escaped", "even", "false", "float", "ge(0)",
    "gt(0)", "in([0, none, ''])", "integer", "iterable", "le(0)", "lt(0)", "mapping", "ne(0)", "none", "number",
    "odd", "sameas(none)", "sequence", "string", "true", "undefined", "nothing",
]  # fmt: skip
SUFFIXES = [
    "[0]", "[-1]", "['b']", "[1:]", "[::-1]", ".b", ".items()|list", ".keys()|list", ".values()|list", ".get('b')", ".upper()",
    ".strip()", ".split()", ".startswith(' ')", ".format(1)", ".join(['<', 'y'])", ".replace('<', '>')", ".x.y", "()",
    " is not none", " if missing", " and 1", " or 1", " in 'abc'", " not in [3]", ".append(1)", ".length", " ** 2", " // 2",
    " % 2", " / 2", " is not defined or 1",
]  # fmt: skip
OPERANDS = [
    "missing", "none", "true", "''", "'a<'", "('<x>'|safe)", "-7", "2.5", "[3, 1]", "(1, 'x')", "{'a': [2]}",
]  # fmt: skip
OPERATORS = ["+", "~", "*", "-", "==", "!=", "<", ">=", "in", "%"]
STATEMENTS = [
    "{% for x in missing %}x{% else %}none{% endfor %}",
    "{% for x in missing.y %}x{% else %}none{% endfor %}",
    "{% for x in none %}x{% else %}none{% endfor %}",
    "{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}",
    "{% if missing %}1{% else %}0{% endif %}{% if missing is iterable and missing | length > 0 %}1{% else %}0{% endif %}",
    "{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('<') + '<a>' }}{{ m(1) ~ '<a>' }}{{ '<a>' + m('&') }}",
    "{% macro m(x) %}<{{ x }}>{% endmacro %}{{ (m('<') | safe) + '<a>' }}{{ '<a>' + (m('<') | e) }}",
    "{% macro m(x, y='d') %}{{ x }}{{ y }}{{ caller is defined }}{% endmacro %}{{ m() }}|{{ m(1, y=2) }}|{{ m(1, 2, 3) }}",
    "{% macro m(x) %}<{{ caller() }}{{ x }}>{% endmacro %}{% call m('&') %}<b>&{% endcall %}",
    "{% macro m(x) %}{{ x }}{% endmacro %}{{ m.name }}",
    "{% set b %}<x>{% endset %}{{ b + '<a>' }}{{ b ~ '<a>' }}{{ b is string }}",
    "{% set b | upper %}<x>{% endset %}{{ b }}",
    "{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{% endfor %}{{ x }}",
    "{% set n = namespace(x=1, y='a') %}{% for i in [1, 2] %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}{{ n.z is defined }}",
    "{% for x in [1, 2, 3] if x != 2 %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{% endfor %}",
    "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{{ loop.cycle('a', 'b') }}{{ loop.revindex0 }}{{ loop.depth }}{% endfor %}",
    "{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% elif x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in [[1, [2]], [3]] recursive %}{{ x if x is number else loop(x) }}{% endfor %}",
    "{% with x = 1, y = 2 %}{{ x + y }}{% endwith %}{{ x is defined }}",
    "{% filter upper %}a{{ 'b' }}{% endfilter %}",
    "{{ [1, 2] + [3] }}{{ (1,) + (2,) }}{{ [1] + range(2) | list }}",
    "{{ true + 1 }}{{ 1 + 2.0 }}{{ 7 // 2 }}{{ -7 // 2 }}{{ -7 % 3 }}{{ 2 ** 10 }}{{ 1 / 2 }}{{ 10 ** 20 }}",
    "{{ '%s|%d|%.2f|%5s|%-5s|' % ('a', 3, 1.5, 'r', 'l') }}{{ '%s' % [1] }}{{ '{} {x}'.format(1, x=2) }}{{ '<%s>'|safe % '<' }}",
    "{{ 1 if false }}{{ (1 if false) is defined }}{{ 'a' 'b' }}{{ not missing }}{{ 1 < 2 < 3 }}",
    "{{ {'a': none, 'b': [true, 1.0, 'x\\'y']} }}{{ (1,) }}{{ () }}{{ 'é\\u0041\\x41' }}",
    "{{ dict(a=1).items() | list }}{{ dict(a=1) }}{{ dict({'a': 1}, b=2) }}",
    "{{ cycler('a', 'b').next() }}",
    "{% set j = joiner(',') %}{% for x in [1, 2] %}{{ j() }}{{ x }}{% endfor %}",
    "{% for k, v in {'a': 1, 'b': 2} | items %}{{ k }}{{ v }}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "{% for x in [1, 2, 3] | select('odd') %}{{ x }}{{ ',' if not loop.last }}{{ loop.nextitem }}{% endfor %}",
    "{{ messages is defined }}{{ tools is none }}{{ documents is none }}{{ tools is iterable }}",
    "{{ tools | length }}",
    "{{ tools is defined and tools }}{{ not tools }}{{ tools == none }}",
    "{%- set x = 'a' -%}  {{- x -}}  \nb\n  {% if true %}\n  c\n  {% endif %}\n  d {#- e -#} f\n",
    "{{ '\\n' }}{{ 'a\nb' }}{{ \"it's\" }}{{ 'q\\'q' }}\n",
    "{% raw %}{{ x }}{% endraw %}{# c #}{% if 1 -%} x {%- endif %}",
    "{{ 'abc'[1] }}{{ 'abc'[-2:] }}{{ 'abc'[5] is defined }}{{ [1, 2][5] is defined }}{{ {'a': 1}['b'] is defined }}",
    "{{ 'a,b,,c'.split(',') }}{{ ' a  b '.split() }}{{ 'a-b-c'.split('-', 1) }}{{ 'a-b-c'.rsplit('-', 1) }}{{ 'a\\nb'.splitlines() }}",
    "{{ 'xay'.partition('a') }}{{ 'aXb'.lower() }}{{ 'ab'.title() }}{{ 'ab'.find('b') }}{{ '12'.isdigit() }}{{ 'abab'.count('ab') }}",
    "{{ '  x '.lstrip() }}|{{ '  x '.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'ab'.removeprefix('a') }}|{{ 'ab'.removesuffix('b') }}",
    "{{ messages.x }}{{ messages[0].role }}",
    "{{ missing.x }}",
    "{{ missing + 'a' }}",
    "{{ raise_exception('no') }}",
    "{{ ''.__class__ }}",
    "{{ [].__class__.__mro__ }}",
    "{% set l = [1] %}{% do l.append(2) %}{{ l }}",
    "{% generation %}a{% endgeneration %}",
    "{% include 'x' %}",
    "{{ 'x' is in 'xyz' }}{{ 2 is divisibleby 2 }}{{ 'a' is eq 'a' }}{{ 3 is odd }}{{ 'A' is upper }}{{ none is sameas none }}",
    "{{ [{'k': 2, 'v': 'x'}, {'k': 1}, {'k': 2}] | groupby('k') | list | length }}",
    "{% for k, items in [{'k': 2, 'v': 'x'}, {'k': 1}, {'k': 2}] | groupby('k') %}{{ k }}{{ items }}{% endfor %}",
    "{{ [{'k': 1}, {'k': 2}] | sum(attribute='k') }}",
    "{% set g = [1, 2, 3] | select %}{{ g | first }}{{ g | list }}{{ g | list }}{% if g %}true{% endif %}",
    "{{ [1] | map('string') | tojson }}",
    "{{ [1] | map('string') | length }}",
    "{{ [1] + range(2) }}",
    "{{ range(3) | sum }}{{ range(3) | length }}{{ range(3) | join }}{{ range(5, 0, -2) | list }}",
    "{{ [1, 'a', none] | sort }}",
    "{{ ['a', 1] | join }}{{ [[1, 2], [3]] | sum(start=[]) }}{{ [1, 2] | sum(start=1) }}",
    "{{ 1e100 }}{{ 1e16 }}{{ 123456789.123 }}{{ 1.0 }}{{ 0.1 + 0.2 }}{{ -0.0 }}",
    "{{ 'a' < 'b' }}{{ [1, 2] < [1, 3] }}{{ 1 == 1.0 }}{{ true == 1 }}{{ 'a' == 1 }}{{ none == false }}",
]  # fmt: skip


def expressions() -> list[str]:
    """Templates of one expression each."""
    found = [f"{{{{ {value}|{name} }}}}" for value in VALUES for name in FILTERS]
    found += [f"{{{{ {value} is {name} }}}}" for value in VALUES for name in TESTS]
    found += [f"{{{{ {value}{suffix} }}}}" for value in VALUES if "|" not in value for suffix in SUFFIXES]
    found += [f"{{{{ ({a}) {op} ({b}) }}}}" for a in OPERANDS for op in OPERATORS for b in OPERANDS]
    return found + [f"{{{{ {value} }}}}" for value in VALUES] + STATEMENTS


def write_expressions() -> None:
    rows = []
    for source in expressions():
        text = render(source, CONVERSATIONS["one"]).get("text")
        # An address is no text to compare.
        if text is None or " at 0x" not in text:
            rows.append(json.dumps([source, text]))
    (DATA / "template_expressions.json").write_text("[\n" + ",\n".join(rows) + "\n]\n")


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
    write_expressions()
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
