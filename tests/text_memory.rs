//! Chat templates take no more memory than their limit says, whatever they do.
//!
//! The allocator of this program counts, so what is measured is the same on every machine.
#![cfg(feature = "text")]

use worker_cuda::ErrorKind;
use worker_cuda::text::{ChatTemplate, TemplateInput, TemplateLimits};

#[path = "support/peak_memory.rs"]
mod peak_memory;

const WORKING_BYTES: usize = 1 << 25;
/// The program of a template, its input and the interpreter's own tables.
const FIXED_BYTES: usize = 1 << 21;

/// Each grows one kind of value until a limit ends it.
const GROWING: &[&str] = &[
    "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s * 2 %}{% endfor %}",
    "{% set n = namespace(s='x' * 999) %}{% for i in range(99999) %}{% set n.s = n.s ~ 'yyyyyyy' %}{% endfor %}",
    "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set b %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = b %}{% endfor %}",
    "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s.replace('x', 'xx') %}{% endfor %}",
    "{% set n = namespace(s='\"') %}{% for i in range(99) %}{% set n.s = n.s | tojson %}{% endfor %}",
    "{% set n = namespace(s='<') %}{% for i in range(99) %}{% set n.s = (n.s ~ n.s) | forceescape %}{% endfor %}",
    "{% set n = namespace(s='%s') %}{% for i in range(99) %}{% set n.s = '%s%s' % (n.s, n.s) %}{% endfor %}",
    "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = '{}{}'.format(n.s, n.s) %}{% endfor %}",
    "{% set n = namespace(s='ŉ') %}{% for i in range(99) %}{% set n.s = (n.s ~ n.s) | upper %}{% endfor %}",
    "{% set n = namespace(s='x\\n') %}{% for i in range(99) %}{% set n.s = (n.s ~ n.s) | indent(9) %}{% endfor %}",
    "{% set n = namespace(l=[1]) %}{% for i in range(99) %}{% set n.l = n.l + n.l %}{% endfor %}",
    "{% set n = namespace(l=[1]) %}{% for i in range(99) %}{% set n.l = n.l * 2 %}{% endfor %}",
    "{% set n = namespace(l=[]) %}{% for i in range(99999) %}{% set n.l = n.l + [[i]] %}{% endfor %}",
    "{% set n = namespace(l=[]) %}{% for i in range(99) %}{% set n.l = n.l + [range(99999) | list] %}{% endfor %}",
    "{% set n = namespace(l=[]) %}{% for i in range(99) %}{% set n.l = n.l + [range(99999) | batch(1) | list] %}{% endfor %}",
    "{% set n = namespace(l=[]) %}{% for i in range(99) %}{% set n.l = n.l + [('x ' * 99999).split()] %}{% endfor %}",
    "{% set n = namespace(l=[]) %}{% for i in range(99) %}{% set n.l = n.l + [('x' * 99999) | list] %}{% endfor %}",
    "{% set n = namespace(l=[]) %}{% for i in range(99) %}{% set n.l = n.l + [[1] | batch(99999, 'x') | list] %}{% endfor %}",
    "{% set n = namespace(l=[]) %}{% for i in range(99) %}{% set n.l = n.l + [[1] | slice(99999) | list] %}{% endfor %}",
    "{% set n = namespace(l=[]) %}{% for i in range(9999) %}{% set n.l = n.l + [{'a': i, 'b': i, 'c': i}] %}{% endfor %}",
    "{% for i in range(99999) %}0123456789012345678901234567890123456789012345678901234567890123456789{{ i }}{% for j in range(99) %}0123456789012345678901234567890123456789{% endfor %}{% endfor %}",
];

#[test]
fn memory_stays_below_the_limit() {
    let limits = TemplateLimits {
        fuel: 50_000_000,
        working_bytes: WORKING_BYTES as u64,
        output_bytes: 1 << 24,
        recursion: 100,
    };
    let input = TemplateInput::default();
    // The first rendering sets up what lives on.
    ChatTemplate::new("{{ 1 }}")
        .unwrap()
        .render(&input)
        .unwrap();

    for source in GROWING {
        let template = ChatTemplate::new(source).unwrap().with_limits(limits);
        let before = peak_memory::begin_peak();

        let error = template.render(&input).expect_err(source);

        let peak = peak_memory::peak() - before;
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{source}: {error}");
        assert!(
            peak <= WORKING_BYTES + FIXED_BYTES,
            "{peak} bytes at most: {source}"
        );
        let after = peak_memory::live();
        assert!(
            after <= before + (1 << 16),
            "{} bytes stay: {source}",
            after - before
        );
    }
}
