//! Whatever a file's vocabulary or template says, the text layer answers with a value or an error.
//!
//! PROPTEST_CASES sets the number of cases of each property.
#![cfg(feature = "text")]

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use worker_cuda::text::{
    ChatTemplate, DecodeOptions, Detokenizer, EncodeOptions, TemplateInput, TemplateLimits,
    TokenType, Tokenizer, Vocabulary,
};

/// Texts of tokens: ordinary, byte tokens well and badly formed, markers, empty.
fn token() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[ab▁Ġé<>|]{1,3}",
        1 => "<0x[0-9A-Fa-f]{1,3}>",
        1 => select(vec!["", "<s>", "</s>", "<|im_end|>", "<0xZZ>", "Ċ", "ń", "🙂", "\u{143}"])
            .prop_map(str::to_owned),
        1 => any::<String>(),
    ]
}

fn token_type() -> impl Strategy<Value = TokenType> {
    (0..8i32).prop_map(TokenType::from_gguf)
}

fn id() -> impl Strategy<Value = Option<u32>> {
    prop_oneof![
        Just(None),
        (0..12u32).prop_map(Some),
        any::<u32>().prop_map(Some)
    ]
}

/// Any bytes, or a map whose sizes are right and whose trie is wild.
fn charsmap() -> impl Strategy<Value = Vec<u8>> {
    let units = vec(prop_oneof![any::<u32>(), 0..2048u32], 0..64);
    let whole = (units, "[a-z é\\x00]{0,24}").prop_map(|(units, replacements)| {
        let mut bytes = (4 * units.len() as u32).to_le_bytes().to_vec();
        bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        bytes.extend(replacements.as_bytes());
        bytes
    });
    prop_oneof![2 => Just(Vec::new()), 1 => vec(any::<u8>(), 0..40), 2 => whole]
}

prop_compose! {
    fn vocabulary()(
        model in select(vec!["gpt2", "llama", "bert", "t5", "gemma4", ""]),
        pre in select(vec!["", "gpt2", "llama3", "deepseek-llm", "superbpe", "qwen2", "none"]),
        tokens in vec(token(), 0..24),
        scores in vec(prop_oneof![(-9f32..9.0), any::<f32>()], 0..24),
        types in vec(token_type(), 0..24),
        same_counts in prop::bool::weighted(0.8),
        merges in vec("[ab▁Ġé]{1,2} [ab▁Ġé]{1,2}|.{0,4}", 0..6),
        (bos_id, eos_id, unk_id) in (id(), id(), id()),
        precompiled_charsmap in charsmap(),
        (add_bos, add_eos, add_space_prefix, remove_extra_whitespaces)
            in any::<(Option<bool>, Option<bool>, Option<bool>, Option<bool>)>(),
    ) -> Vocabulary {
        let mut vocabulary = Vocabulary {
            model: model.into(),
            pre: pre.into(),
            tokens,
            scores,
            token_types: types,
            merges,
            bos_id,
            eos_id,
            unk_id,
            add_bos,
            add_eos,
            add_space_prefix,
            remove_extra_whitespaces,
            precompiled_charsmap,
            ..Vocabulary::default()
        };
        if same_counts {
            vocabulary.scores.resize(vocabulary.tokens.len(), 0.5);
            vocabulary.token_types.resize(vocabulary.tokens.len(), TokenType::Normal);
            let tokens = vocabulary.tokens.clone();
            vocabulary.merges.retain(|merge| {
                let known = |text: &str| tokens.iter().any(|token| token == text);
                merge.split_once(' ').is_some_and(|(a, b)| {
                    known(a) && known(b) && known(&format!("{a}{b}"))
                })
            });
        }
        vocabulary
    }
}

/// All bytes as tokens of their own, SentencePiece or byte-level, with a few longer tokens.
fn whole_vocabulary(sentence_piece: bool) -> Vocabulary {
    let mut vocabulary = Vocabulary {
        model: if sentence_piece { "llama" } else { "gpt2" }.into(),
        pre: "llama3".into(),
        ..Vocabulary::default()
    };
    let mut rest = 256..;
    for byte in 0..256u32 {
        let (text, token_type) = if sentence_piece {
            (format!("<0x{byte:02X}>"), TokenType::Byte)
        } else {
            let code = match byte {
                33..=126 | 161..=172 | 174..=255 => byte,
                _ => rest.next().unwrap(),
            };
            (char::from_u32(code).unwrap().to_string(), TokenType::Normal)
        };
        vocabulary.tokens.push(text);
        vocabulary.token_types.push(token_type);
    }
    for text in ["a", "b", "ab", "aba", "▁", "▁a", "é"] {
        if !vocabulary.tokens.iter().any(|token| token == text) {
            vocabulary.tokens.push(text.into());
            vocabulary.token_types.push(TokenType::Normal);
        }
    }
    vocabulary.tokens.push("<|end|>".into());
    vocabulary.token_types.push(TokenType::Control);
    vocabulary.scores = (0..vocabulary.tokens.len()).map(|i| -(i as f32)).collect();
    vocabulary
}

fn options() -> impl Strategy<Value = EncodeOptions> {
    any::<(bool, bool)>().prop_map(|(add_special, parse_special)| EncodeOptions {
        add_special,
        parse_special,
    })
}

/// Pieces of templates that make sense together often enough.
fn template() -> impl Strategy<Value = String> {
    let piece = select(vec![
        "{% for m in messages %}",
        "{% endfor %}",
        "{% if m %}",
        "{% elif x %}",
        "{% else %}",
        "{% endif %}",
        "{{ m.content }}",
        "{{ m['role'] ~ '\\n' }}",
        "{% set x = m %}",
        "{% set n = namespace(a=1) %}",
        "{% set n.a = n %}",
        "{% set n.a = n.a + 1 %}",
        "{{ n }}",
        "{{ x[1:] }}",
        "{{ x[::-1] }}",
        "{{ x[-9223372036854775807:9:-3] }}",
        "{{ 7 % 0 }}",
        "{{ 7 // 0 }}",
        "{{ -170141183460469231731687303715884105728 * -1 }}",
        "{{ '%s %d' % (1, 2) }}",
        "{{ '%c%r%(a)s' % 1 }}",
        "{{ '{0} {a!r} {'.format(1) }}",
        "{{ x | tojson(indent=2) }}",
        "{{ messages | map(attribute='role') | join(',') }}",
        "{{ loop.index }}",
        "{{ range(3) | list }}",
        "{{ [1, 'a', none] | sort }}",
        "{{ x | batch(0) }}",
        "{{ x | slice(-1) }}",
        "{{ x | round(99) }}",
        "{{ 'a'.split('') }}",
        "{{ 'a'.rsplit('') }}",
        "{{ 'a'.partition('') }}",
        "{{ 'aé'[0] }}",
        "{{ raise_exception(x) }}",
        "{{ strftime_now('%Q') }}",
        "{% macro f(a) %}",
        "{% endmacro %}",
        "{{ f(1) }}",
        "{% call f(2) %}",
        "{% endcall %}",
        "{% generation %}",
        "{% endgeneration %}",
        "{%- ",
        "-%}",
        "{#",
        "#}",
        "{{",
        "}}",
        "{% raw %}",
        "{% endraw %}",
        "text\n",
        " ",
        "é🙂",
        "{{ x | __made }}",
        "{{ 2 ** 99999 }}",
        "{{ 1e308 * 10 }}",
        "{{ (1, 2)[5] }}",
        "{{ dict(a=n) }}",
        "{{ x is sequence }}",
        "{{ x in messages }}",
        "{{ messages == messages }}",
        "{{ x.items() }}",
        "{{ 'a' | indent(-1) }}",
        "{{ 'a' | center(9) }}",
        "{% break %}",
        "{% continue %}",
        "{% do f() %}",
    ]);
    vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

/// 64 cases, or PROPTEST_CASES.
fn cases() -> ProptestConfig {
    let wanted = std::env::var("PROPTEST_CASES").ok();
    ProptestConfig::with_cases(wanted.and_then(|cases| cases.parse().ok()).unwrap_or(64))
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn hostile_vocabularies_never_panic(
        vocabulary in vocabulary(),
        text in "[ab é<>|▁🙂\\n]{0,24}|<\\|im_end\\|>a</s>",
        options in options(),
        ids in vec(prop_oneof![0..30u32, any::<u32>()], 0..12),
        show_special in any::<bool>(),
    ) {
        let count = vocabulary.tokens.len();
        if let Ok(tokenizer) = Tokenizer::from_vocabulary(vocabulary) {
            let encoded = tokenizer.encode(&text, options).unwrap();
            prop_assert!(encoded.iter().all(|&id| (id as usize) < count));
            let decode = DecodeOptions { show_special, at_text_start: true };
            let known = ids.iter().all(|&id| (id as usize) < count);
            prop_assert_eq!(tokenizer.decode(&ids, decode).is_ok(), known);
        }
    }

    #[test]
    fn text_comes_back(text in any::<String>(), sentence_piece in any::<bool>()) {
        let tokenizer = Tokenizer::from_vocabulary(whole_vocabulary(sentence_piece)).unwrap();
        let ids = tokenizer.encode(&text, EncodeOptions::default()).unwrap();
        let decode = DecodeOptions { show_special: false, at_text_start: true };

        let back = tokenizer.decode(&ids, decode).unwrap();

        // A mark that stands for a space cannot be distinguished from a space.
        let expected = match sentence_piece {
            true => text.replace('▁', " "),
            false => text,
        };
        prop_assert_eq!(back, expected);
    }

    #[test]
    fn what_comes_out_piecewise_is_the_whole(
        ids in vec(0..264u32, 0..40),
        sentence_piece in any::<bool>(),
        show_special in any::<bool>(),
        at_text_start in any::<bool>(),
    ) {
        let vocabulary = whole_vocabulary(sentence_piece);
        let ids: Vec<u32> = ids.into_iter().map(|id| id % vocabulary.tokens.len() as u32).collect();
        let tokenizer = Arc::new(Tokenizer::from_vocabulary(vocabulary).unwrap());
        let decode = DecodeOptions { show_special, at_text_start };
        let mut bytes = Vec::new();
        let mut detokenizer = Detokenizer::new(Arc::clone(&tokenizer), decode);
        let mut text = String::new();

        for &id in &ids {
            detokenizer.push(id, &mut text).unwrap();
            if show_special || !tokenizer.is_special(id) {
                bytes.extend_from_slice(tokenizer.token_bytes(id).unwrap());
            }
            prop_assert!(detokenizer.pending_bytes() <= 3);
        }
        detokenizer.finish(&mut text);

        prop_assert_eq!(&text, &tokenizer.decode(&ids, decode).unwrap());
        if !(sentence_piece && at_text_start) {
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn templates_never_panic(source in template(), contents in vec(any::<String>(), 0..3)) {
        let limits = TemplateLimits {
            fuel: 10_000,
            working_bytes: 1 << 20,
            output_bytes: 1 << 18,
            recursion: 50,
        };
        let messages = contents
            .into_iter()
            .map(|content| serde_json::json!({"role": "user", "content": content}))
            .collect();
        let input = TemplateInput { messages, ..TemplateInput::default() };

        let result = ChatTemplate::new(&source).and_then(|t| t.with_limits(limits).render(&input));

        if let Err(error) = result {
            prop_assert_ne!(error.kind(), worker_cuda::ErrorKind::Internal, "{}: {}", source, error);
            prop_assert!(!error.message().contains('\n'));
        }
    }
}
