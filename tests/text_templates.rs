//! Chat templates against what `transformers` renders; tools/golden/templates.py makes the file.
#![cfg(feature = "text")]

use std::path::PathBuf;

use serde_json::Value;
use worker_cuda::ErrorKind;
use worker_cuda::generate::CancelFlag;
use worker_cuda::text::{
    ChatTemplate, Clock, NamedTemplate, RenderOptions, TemplateInput, TemplateLimits, Vocabulary,
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

/// What is wrong where `rendered` is not `expected`; None means that the reference refuses the input.
fn difference(rendered: worker_cuda::Result<String>, expected: Option<&str>) -> Option<String> {
    match (rendered, expected) {
        (Ok(text), Some(expected)) if text == expected => None,
        (Err(_), None) => None,
        (Ok(text), None) => Some(format!("is {text:?}, the reference refuses it")),
        (Err(error), Some(expected)) => Some(format!("{error}; the reference says {expected:?}")),
        (Ok(text), Some(expected)) => {
            let mut lines = text.lines().zip(expected.lines());
            match lines.find(|(got, wanted)| got != wanted) {
                Some((got, wanted)) => Some(format!("{got:?}\n  expected {wanted:?}")),
                None => Some(format!("{text:?}\n  expected {expected:?}")),
            }
        }
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
        if let Some(what) = difference(rendered, case["text"].as_str()) {
            report.push(format!("{name}, {}: {what}", case["case"]));
        }
    }

    assert!(report.is_empty(), "{}", report.join("\n"));
}

#[test]
fn expressions_print_as_in_jinja() {
    let golden: Value = serde_json::from_str(&data("template_expressions.json")).unwrap();
    let given = serde_json::json!({"messages": [{"role": "user", "content": "What is 2 + 2?"}]});
    let mut report = Vec::new();

    for case in golden.as_array().unwrap() {
        let source = case[0].as_str().unwrap();
        let rendered = ChatTemplate::from_vocabulary(&vocabulary(source), None)
            .and_then(|template| template.render(&input(&given)));
        if let Some(what) = difference(rendered, case[1].as_str()) {
            report.push(format!("{source}: {what}"));
        }
    }

    assert!(
        report.is_empty(),
        "{} differences\n{}",
        report.len(),
        report.join("\n")
    );
}

/// tools/golden/published_templates.py makes the file; the templates are not the project's to publish.
#[test]
fn published_templates_render_as_transformers_renders_them() {
    let Some(path) = std::env::var_os("WCUDA_PUBLISHED_TEMPLATES") else {
        eprintln!("skipped: WCUDA_PUBLISHED_TEMPLATES names no file (./dev oracle makes it)");
        return;
    };
    let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut report = Vec::new();

    for published in golden["templates"].as_array().unwrap() {
        let name = published["name"].as_str().unwrap();
        let vocabulary = vocabulary(published["source"].as_str().unwrap());
        for (case, text) in published["cases"].as_object().unwrap() {
            let rendered = ChatTemplate::from_vocabulary(&vocabulary, None)
                .and_then(|template| template.render(&input(&golden["inputs"][case])));
            if let Some(what) = difference(rendered, text.as_str()) {
                report.push(format!("{name}, {case}: {what}"));
            }
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

/// Each takes few instructions of the interpreter, each of which visits many elements.
const LAZY: &[&str] = &[
    "range(99999) | last",
    "range(99999) | first ~ (range(99999) | last)",
    "range(99999) | batch(9) | list",
    "range(99999) | slice(9) | list",
    "range(99999) | list",
    "range(99999) | sort",
    "range(99999) | unique | list",
    "range(99999) | min",
    "range(99999) | sum",
    "range(99999) | join",
    "range(99999) | reverse | list",
    "range(99999) | map('string') | list",
    "range(99999) | select('odd') | list",
    "range(99999) | string",
    "range(99999)[99998]",
    "range(99999)[::-1]",
    "[{'a': 1}] | groupby('a') | list ~ (range(99999) | groupby('a') | list)",
    "99998 in range(99999)",
    "99998 is in range(99999)",
    "range(99999) == range(99999)",
    "(range(99999) | list) < (range(99999) | list)",
    "(range(99999) | list) + [1]",
    "dict(*[range(99999)])",
    "cycler(*range(99999))",
    "'%s' % range(99999)",
    "'{}'.format(range(99999))",
    "''.join(range(99999) | map('string'))",
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
fn nested_lists_and_maps_are_counted() {
    for value in ["[[i]]", "{'a': [i]}", "{'a': {'b': i}}", "dict(a=[i])"] {
        let source = format!("{{% for i in range(20001) %}}{{% set x = {value} %}}{{% endfor %}}");

        let error = render(&source).expect_err(&source);

        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{value}: {error}");
        assert!(
            error.message().contains("20000 nested lists or maps"),
            "{value}: {error}"
        );
    }
}

#[test]
fn json_reserves_six_bytes_for_an_escaped_byte_alone() {
    let limits = TemplateLimits {
        working_bytes: 1 << 24,
        ..TemplateLimits::default()
    };
    let length_of = |text: &str| {
        let template =
            ChatTemplate::new(&format!("{{{{ ('{text}' * 1000000) | tojson | length }}}}"));
        template?
            .with_limits(limits)
            .render(&TemplateInput::default())
    };

    assert_eq!(length_of("x").unwrap(), "1000002");
    assert_eq!(
        length_of("\"").unwrap_err().kind(),
        ErrorKind::LimitExceeded
    );
}

#[test]
fn json_names_infinities_by_their_sign() {
    let json = render("{{ [1e308 * 10, -1e308 * 10] | tojson }}");

    assert_eq!(json.unwrap(), "[Infinity, -Infinity]");
}

#[test]
fn every_element_visited_is_a_step() {
    let limits = TemplateLimits {
        fuel: 300_000,
        ..TemplateLimits::default()
    };

    for expression in LAZY {
        let source = format!("{{% for i in range(999) %}}{{{{ {expression} }}}}{{% endfor %}}");
        let template = ChatTemplate::new(&source).unwrap().with_limits(limits);

        let error = template
            .render(&TemplateInput::default())
            .expect_err(&source);

        assert!(
            matches!(
                error.kind(),
                ErrorKind::LimitExceeded | ErrorKind::Malformed
            ),
            "{source}: {error}"
        );
        if error.kind() == ErrorKind::Malformed {
            eprintln!("refused: {source}: {error}");
        }
    }
}

#[test]
fn rendering_ends_at_its_deadline_and_when_cancelled() {
    let endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    let template = ChatTemplate::new(endless).unwrap();
    let cancel = CancelFlag::default();
    cancel.set();
    let past = RenderOptions {
        deadline: Some(std::time::Instant::now()),
        ..RenderOptions::default()
    };
    let cancelled = RenderOptions {
        cancel: Some(cancel),
        ..RenderOptions::default()
    };

    let input = TemplateInput::default();
    let late = template.render_with(&input, &past).unwrap_err();
    let stopped = template.render_with(&input, &cancelled).unwrap_err();

    assert_eq!(late.kind(), ErrorKind::Timeout);
    assert!(late.message().contains("rendering passed its deadline"));
    assert_eq!(stopped.kind(), ErrorKind::Cancelled);
    assert!(stopped.message().contains("rendering was cancelled"));
}

#[test]
fn a_loop_that_makes_nothing_sees_the_cancel_flag() {
    let unlimited = TemplateLimits {
        fuel: u64::MAX >> 1,
        ..TemplateLimits::default()
    };
    let endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    let template = ChatTemplate::new(endless).unwrap().with_limits(unlimited);
    let cancel = CancelFlag::default();
    let options = RenderOptions {
        cancel: Some(cancel.clone()),
        ..RenderOptions::default()
    };

    let rendering =
        std::thread::spawn(move || template.render_with(&TemplateInput::default(), &options));
    cancel.set();

    let error = rendering.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
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
