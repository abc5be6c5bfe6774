//! Chat templates against what `transformers` renders; tools/golden/templates.py makes the file.
#![cfg(feature = "text")]

use std::path::PathBuf;

use serde_json::Value;
use worker_cuda::ErrorKind;
use worker_cuda::text::{
    ChatTemplate, Clock, NamedTemplate, TemplateInput, TemplateLimits, Vocabulary,
};

/// 2024-07-26 13:05:09 UTC.
const CLOCK: Clock = Clock {
    unix_seconds: 1_721_999_109,
    utc_offset_seconds: 0,
};

fn data(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn list(value: &Value) -> Option<Vec<Value>> {
    value.as_array().cloned()
}

fn input(given: &Value) -> TemplateInput {
    TemplateInput {
        messages: list(&given["messages"]).unwrap(),
        tools: list(&given["tools"]),
        documents: list(&given["documents"]),
        add_generation_prompt: given["add_generation_prompt"].as_bool().unwrap_or(false),
        variables: given["variables"].as_object().cloned().unwrap_or_default(),
        clock: Some(CLOCK),
    }
}

fn vocabulary(source: &str) -> Vocabulary {
    Vocabulary {
        tokens: vec!["<unk>".into(), "<s>".into(), "</s>".into()],
        unk_id: Some(0),
        bos_id: Some(1),
        eos_id: Some(2),
        chat_templates: vec![NamedTemplate {
            name: String::new(),
            source: source.into(),
        }],
        ..Vocabulary::default()
    }
}

#[test]
fn templates_render_as_transformers_renders_them() {
    let golden: Value = serde_json::from_str(&data("templates.json")).unwrap();
    let mut report = Vec::new();

    for case in golden["cases"].as_array().unwrap() {
        let name = case["template"].as_str().unwrap();
        let source = data(&format!("templates/{name}.jinja"));
        let template = ChatTemplate::from_vocabulary(&vocabulary(&source), None).unwrap();
        let rendered = template.render(&input(&golden["inputs"][case["case"].as_str().unwrap()]));
        match (rendered, case["text"].as_str()) {
            (Ok(text), Some(expected)) if text == expected => {}
            (Err(_), None) => {}
            (Ok(text), expected) => {
                let expected = expected.unwrap_or("an error");
                for (got, wanted) in text.lines().zip(expected.lines()) {
                    if got != wanted {
                        report.push(format!(
                            "{name}, {}:\n  got      {got:?}\n  expected {wanted:?}",
                            case["case"]
                        ));
                    }
                }
                if text.lines().count() != expected.lines().count() || report.is_empty() {
                    report.push(format!("{name}, {}: {text:?}\n{expected:?}", case["case"]));
                }
            }
            (Err(error), Some(_)) => report.push(format!("{name}, {}: {error}", case["case"])),
        }
    }

    assert!(report.is_empty(), "{}", report.join("\n"));
}

fn render(source: &str) -> worker_cuda::Result<String> {
    ChatTemplate::new(source)?.render(&TemplateInput::default())
}

#[test]
fn a_failing_template_names_its_line() {
    for (source, kind, message) in [
        (
            "ok\n{{ messages[0].x.y }}",
            ErrorKind::Malformed,
            "chat template, line 2: `(...)[0]` is undefined",
        ),
        (
            "\n\n{% if %}",
            ErrorKind::Malformed,
            "chat template, line 3: unexpected end of block",
        ),
        (
            "{{ 'a' | nothing }}",
            ErrorKind::Malformed,
            "chat template, line 1: filter nothing is unknown",
        ),
        (
            "\n{{ raise_exception('roles\nmust alternate') }}",
            ErrorKind::InvalidArgument,
            "chat template, line 2: refused: roles must alternate",
        ),
        (
            "{% include 'x' %}",
            ErrorKind::Malformed,
            "chat template: line 1: 'include' has no place in a chat template",
        ),
    ] {
        let error = render(source).unwrap_err();

        assert_eq!(error.kind(), kind, "{source:?}: {error}");
        assert!(error.message().contains(message), "{source:?}: {error}");
    }
}

#[test]
fn a_missing_template_is_named() {
    let mut vocabulary = vocabulary("x");
    vocabulary.chat_templates.push(NamedTemplate {
        name: "tool_use".into(),
        source: "y".into(),
    });

    let error = ChatTemplate::from_vocabulary(&vocabulary, Some("rag")).unwrap_err();
    let named = ChatTemplate::from_vocabulary(&vocabulary, Some("tool_use")).unwrap();
    vocabulary.chat_templates.clear();
    let none = ChatTemplate::from_vocabulary(&vocabulary, None).unwrap_err();

    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(
        error.message(),
        "the model has no chat template named 'rag'; there are: the unnamed one, 'tool_use'"
    );
    assert_eq!(named.render(&TemplateInput::default()).unwrap(), "y");
    assert_eq!(none.message(), "the model has no chat template");
}

#[test]
fn strftime_now_needs_a_clock() {
    let source = "{{ strftime_now('%Y') if strftime_now is defined else 'no clock' }}";
    let with_clock = TemplateInput {
        clock: Some(CLOCK),
        ..TemplateInput::default()
    };

    assert_eq!(render(source).unwrap(), "no clock");
    assert_eq!(
        ChatTemplate::new(source)
            .unwrap()
            .render(&with_clock)
            .unwrap(),
        "2024"
    );
}

/// Programs that would take all memory or time there is, each in another way.
const BOMBS: &[&str] = &[
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "{% set n = namespace(s='xx') %}{% for i in range(99) %}{% set n.s = n.s * 2 %}{% endfor %}",
    "{{ 'x' * 999999999 }}",
    "{{ ('x' * 99999999) ~ ('x' * 99999999) ~ ('x' * 99999999) ~ ('x' * 99999999) ~ ('x' * 99999999) ~ ('x' * 99999999) }}",
    "{{ [0] * 99999999 }}",
    "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s | replace('x', 'xxxx') %}{% endfor %}",
    "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s.replace('x', 'xxxx') %}{% endfor %}",
    "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = [n.s, n.s] | join %}{% endfor %}",
    "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = '%s%s' % (n.s, n.s) %}{% endfor %}",
    "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = '{}{}'.format(n.s, n.s) %}{% endfor %}",
    "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set b %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = b %}{% endfor %}",
    "{% set n = namespace(l=[1]) %}{% for i in range(99) %}{% set n.l = n.l + n.l %}{% endfor %}{{ n.l | length }}",
    "{% set n = namespace(l=[1]) %}{% for i in range(99) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}",
    "{% set n = namespace(l=[1]) %}{% for i in range(99) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l | tojson }}",
    "{% set n = namespace(l=[1], m=[1]) %}{% for i in range(60) %}{% set n.l = [n.l, n.l] %}{% set n.m = [n.m, n.m] %}{% endfor %}{{ n.l == n.m }}",
    "{% set n = namespace(l=[1]) %}{% for i in range(99999) %}{% set n.l = [n.l] %}{% endfor %}",
    "{% set n = namespace(l=[1]) %}{% for i in range(99999) %}{% set n.l = n.l | batch(1) | list %}{% endfor %}",
    "{% macro m(x) %}{{ m(x + 1) }}{% endmacro %}{{ m(1) }}",
    "{% macro m(x) %}{% if x %}{{ m(x - 1) }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ 'a' | indent(999999999) }}",
    "{{ [1] | tojson(indent=999999999) }}",
    "{% set s = 'x' * 9999999 %}{% for i in range(99999) %}{{ s == s ~ 'y' }}{% endfor %}",
    "{% set s = 'x' * 99999999 %}{% for i in range(99999) %}{% if 'y' in s %}{% endif %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99) %}0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789{% endfor %}{% endfor %}",
    "{{ range(99999) | map('string') | map('replace', '1', 'x' * 99999) | list | length }}",
];

#[test]
fn bombs_pass_a_limit() {
    let limits = TemplateLimits {
        fuel: 200_000,
        working_bytes: 1 << 24,
        output_bytes: 1 << 20,
        recursion: 100,
    };

    for source in BOMBS {
        let template = ChatTemplate::new(source).unwrap().with_limits(limits);
        let result = template.render(&TemplateInput::default());

        let error = result.expect_err(source);
        assert!(
            matches!(
                error.kind(),
                ErrorKind::LimitExceeded | ErrorKind::Malformed
            ),
            "{source}: {error}"
        );
    }
}

#[test]
fn deep_programs_are_refused_or_run() {
    let deep = [
        format!("{{{{ {} }}}}", vec!["1"; 50_000].join(" ~ ")),
        format!("{{{{ {}1 }}}}", "not ".repeat(50_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(50_000)),
        format!("{{{{ {}1{} }}}}", "(".repeat(50_000), ")".repeat(50_000)),
        format!("{{{{ {}{} }}}}", "[".repeat(50_000), "]".repeat(50_000)),
        format!("{{{{ 'a'{} }}}}", "|e".repeat(50_000)),
        format!("{{{{ a{} }}}}", ".a".repeat(50_000)),
        format!("{{{{ a{} }}}}", "[0]".repeat(50_000)),
        format!(
            "{}{}",
            "{% if 1 %}".repeat(10_000),
            "{% endif %}".repeat(10_000)
        ),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(10_000)),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}x".repeat(400)),
        format!("{{{{ {} }}}}", vec!["1"; 900].join(" ~ ")),
        "x".repeat(1 << 19),
    ];

    for source in deep {
        let result = ChatTemplate::new(&source).and_then(|t| t.render(&TemplateInput::default()));

        if let Err(error) = result {
            assert_ne!(error.kind(), ErrorKind::Internal, "{error}");
        }
    }
}

#[test]
fn deep_input_is_refused() {
    let mut value = Value::Null;
    for _ in 0..500 {
        value = Value::Array(vec![value]);
    }
    let input = TemplateInput {
        messages: vec![value],
        ..TemplateInput::default()
    };

    let error = ChatTemplate::new("x").unwrap().render(&input).unwrap_err();

    assert_eq!(
        error.message(),
        "'messages' is nested deeper than 128 levels"
    );
}
