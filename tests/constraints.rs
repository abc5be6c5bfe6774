//! Rules compiled for a vocabulary: which texts their masks let through.
#![cfg(feature = "constraints")]

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use worker_cuda::generate::constraints::{
    Compiler, MAX_DEFINITIONS, MAX_PROPERTIES, MAX_REFERENCE_DEPTH, Rule,
};
use worker_cuda::generate::service::{
    Constrained, Constraint, ConstraintState, Event, Next, Options, Request,
};
use worker_cuda::generate::{FinishReason, Service};
use worker_cuda::text::{EncodeOptions, TokenType, Tokenizer, Vocabulary};
use worker_cuda::{Backend, CudaContext, EngineOptions, Gguf, Model, Sampling, Token};

#[path = "support/real_model.rs"]
mod real_model;
#[path = "support/schemas.rs"]
mod schemas;

/// SentencePiece with all bytes, some longer pieces and a marker.
fn sentence_piece() -> Tokenizer {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>", "<|call|>"]
        .map(String::from)
        .to_vec();
    let mut types = vec![TokenType::Unknown];
    types.resize(tokens.len(), TokenType::Control);
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    types.resize(tokens.len(), TokenType::Byte);
    let pieces = [
        "▁", "▁▁", "▁{", "{\"", "\":", "\",", "\"}", "tr", "true", "name", "é", "a", "b", "1",
    ];
    tokens.extend(pieces.map(String::from));
    types.resize(tokens.len(), TokenType::Normal);
    let vocabulary = Vocabulary {
        model: "llama".into(),
        scores: (0..tokens.len()).map(|id| id as f32).collect(),
        tokens,
        token_types: types,
        bos_id: Some(1),
        eos_id: Some(2),
        unk_id: Some(0),
        add_bos: Some(false),
        add_space_prefix: Some(false),
        ..Vocabulary::default()
    };
    Tokenizer::from_vocabulary(vocabulary).unwrap()
}

/// A vocabulary with its compiler. The model has more logits than the tokenizer has tokens.
struct Bench {
    tokenizer: Tokenizer,
    compiler: Compiler,
    size: u32,
    /// Masks so far, and how long they took.
    masks: Cell<(u32, Duration)>,
}

impl Bench {
    fn new(tokenizer: Tokenizer) -> Self {
        let size = tokenizer.token_count() as u32 + 40;
        let compiler = Compiler::new(&tokenizer, size).unwrap();
        Self {
            tokenizer,
            compiler,
            size,
            masks: Cell::default(),
        }
    }

    /// Of SmolLM2, which has byte-level tokens.
    fn real() -> Option<Self> {
        let path = real_model::real_model()?;
        let gguf = Gguf::open(path).unwrap();
        Some(Self::new(Tokenizer::from_gguf(&gguf).unwrap()))
    }

    fn compile(&self, rule: &Rule) -> Arc<dyn Constraint> {
        let compiled = self.compiler.compile(rule);
        compiled.unwrap_or_else(|error| panic!("{rule:?}: {error}"))
    }

    fn refusal(&self, rule: &Rule) -> String {
        match self.compiler.compile(rule) {
            Ok(_) => panic!("{rule:?} is accepted"),
            Err(error) => error.to_string(),
        }
    }

    fn encode(&self, text: &str) -> Vec<Token> {
        let options = EncodeOptions::default();
        self.tokenizer.encode(text, options).unwrap()
    }

    /// Whether the masks let the tokens through, one after another, and then the end.
    fn lets_through(&self, rule: &dyn Constraint, tokens: &[Token]) -> bool {
        let mut state = rule.start();
        for &token in tokens {
            let mut mask = vec![0u32; self.size.div_ceil(32) as usize];
            let begin = Instant::now();
            let next = state.allow(&mut mask).unwrap();
            let (count, time) = self.masks.get();
            self.masks.set((count + 1, time + begin.elapsed()));
            if next == Next::End || mask[token as usize / 32] >> (token % 32) & 1 == 0 {
                return false;
            }
            state.advance(token).unwrap();
        }
        let mut mask = vec![0u32; self.size.div_ceil(32) as usize];
        state.allow(&mut mask).unwrap() != Next::Token
    }

    #[track_caller]
    fn assert_texts(&self, rule: &Rule, accepted: &[&str], refused: &[&str]) {
        let compiled = self.compile(rule);
        for (texts, expected) in [(accepted, true), (refused, false)] {
            for text in texts {
                let found = self.lets_through(&*compiled, &self.encode(text));
                assert_eq!(found, expected, "{text:?} under {rule:?}");
            }
        }
    }
}

fn check_texts(bench: &Bench) {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 8 },
            "age": { "type": "integer", "minimum": 0 },
            "tags": { "type": "array", "items": { "enum": ["a", "b"] }, "maxItems": 2 },
        },
        "required": ["name", "age"],
        "additionalProperties": false,
    });
    bench.assert_texts(
        &Rule::JsonSchema(schema),
        &[
            r#"{"name":"Zoë","age":7}"#,
            r#"{ "name": "a b", "age": 0, "tags": ["a", "b"] }"#,
            "{\n  \"name\": \"\\n\",\n  \"age\": 12\n}",
        ],
        &[
            "",
            "{",
            r#"{"name":"Zoë"}"#,
            r#"{"name":"Zoë","age":-1}"#,
            r#"{"name":"far too long","age":1}"#,
            r#"{"name":"x","age":1,"tags":["c"]}"#,
            r#"{"name":"x","age":1,"more":1}"#,
            r#"{"name":"x","age":1} and more"#,
            r#"Sure: {"name":"x","age":1}"#,
        ],
    );
    bench.assert_texts(
        &Rule::JsonObject,
        &["{}", r#"{"a":[1,{"b":null}],"é":"😀"}"#],
        &["[]", "1", "{\"a\":}", "{'a':1}"],
    );
    bench.assert_texts(
        &Rule::Regex("[0-9]{4}-[0-9]{2}|(é|a)+".into()),
        &["2026-11", "aé", "ééé"],
        &["2026", "2026-1", "b", "a ", ""],
    );
    bench.assert_texts(
        &Rule::Lark("start: sum\nsum: NUM (\"+\" sum)?\nNUM: /[0-9]+/\n".into()),
        &["1", "12+3+4"],
        &["", "+1", "1+", "1 + 2"],
    );
}

#[test]
fn masks_let_through_what_a_rule_allows_and_nothing_else() {
    check_texts(&Bench::new(sentence_piece()));
    if let Some(bench) = Bench::real() {
        check_texts(&bench);
    }
}

#[test]
fn a_text_may_be_cut_into_any_tokens_and_control_tokens_are_no_text() {
    let bench = Bench::new(sentence_piece());
    let rule = bench.compile(&Rule::Regex("é?true".into()));
    let id = |text: &str| bench.tokenizer.token_id(text).unwrap();
    let bytes = |text: &str| {
        text.bytes()
            .map(|byte| 4 + u32::from(byte))
            .collect::<Vec<_>>()
    };
    for tokens in [
        vec![id("é"), id("true")],
        bytes("étrue"),
        [vec![id("tr")], bytes("ue")].concat(),
    ] {
        assert!(bench.lets_through(&*rule, &tokens), "{tokens:?}");
    }
    for token in [0, 1, 2, 3, bench.size - 1] {
        assert!(!bench.lets_through(&*rule, &[token, id("true")]));
    }
    let marked = bench.compile(&Rule::Lark("start: <[3]> \"a\"\n".into()));
    assert!(bench.lets_through(&*marked, &[3, id("a")]));
    assert!(!bench.lets_through(&*marked, &bytes("<|call|>a")));
    assert!(!bench.lets_through(&*marked, &[2, id("a")]));
}

#[test]
fn a_rule_may_begin_inside_of_a_token() {
    let bench = Bench::new(sentence_piece());
    let rule = bench.compile(&Rule::Regex("\\{\"a\":true\\}".into()));
    let mut state = rule.start();
    state.advance_text(b"{\"a").unwrap();
    for token in bench.encode("\":true}") {
        state.advance(token).unwrap();
    }
    let mut mask = vec![0u32; bench.size.div_ceil(32) as usize];
    assert_eq!(state.allow(&mut mask), Ok(Next::End));
    assert!(rule.start().advance_text(b"x").is_err());
}

#[test]
fn rules_that_are_wrong_or_too_large_are_errors() {
    let bench = Bench::new(sentence_piece());
    let nested = |depth: usize| {
        (0..depth).fold(
            json!({ "type": "null" }),
            |inner, _| json!({ "anyOf": [inner] }),
        )
    };
    let object = |count: usize| {
        let properties = (0..count).map(|at| (format!("p{at}"), json!({ "type": "null" })));
        json!({ "type": "object", "properties": properties.collect::<serde_json::Map<_, _>>() })
    };
    for (rule, part) in [
        (Rule::JsonSchema(json!(7)), "a schema is an object, not 7"),
        (Rule::JsonSchema(json!({ "type": "text" })), "text"),
        (
            Rule::JsonSchema(json!({ "$ref": "https://example.org/x" })),
            "not present",
        ),
        (
            Rule::JsonSchema(json!({ "const": "x".repeat(300 << 10) })),
            "at most 262144",
        ),
        (
            Rule::JsonSchema(nested(40)),
            "more than 64 values inside of each other",
        ),
        (Rule::JsonSchema(object(1001)), "more than 1000 properties"),
        (Rule::Lark("start: other".into()), "other"),
        (Rule::Lark("start".into()), ""),
        (
            Rule::Lark(format!("start: {}\"a\"", "(".repeat(100_000))),
            "more than 64 brackets",
        ),
        (Rule::Lark(String::new()), ""),
        (
            Rule::Regex("(a".into()),
            "invalid regex \"(a\" (in regex): unclosed group",
        ),
        (
            Rule::JsonSchema(json!({ "type": "string", "pattern": "(a" })),
            "invalid regex: unclosed group",
        ),
        (
            Rule::Lark("start: x\nx: x \"a\" | x".into()),
            "no text follows the rule",
        ),
        (Rule::Regex("(".repeat(200_000)), ""),
        (Rule::Regex("a".repeat(300 << 10)), "at most 262144"),
    ] {
        let refusal = bench.refusal(&rule);
        assert!(refusal.contains(part), "{refusal}");
        assert!(refusal.len() < 700 && !refusal.contains('\n'), "{refusal}");
    }
    bench.compile(&Rule::JsonSchema(object(1000)));
    bench.compile(&Rule::JsonSchema(nested(30)));
    // Brackets in strings, regular expressions, comments and names of tokens are none.
    bench.compile(&Rule::Lark(format!(
        "start: A B <[3]> // {many}\nA: \"{many}\\\"\" # {many}\nB: /[\"({{]+\\/{letters}/\n",
        many = "(".repeat(200),
        letters = "[a]".repeat(200),
    )));
}

/// A grammar of `count` definitions, each of which names the next one between brackets.
fn chain(name: &str, count: usize, brackets: usize) -> Rule {
    let (open, close) = ("(".repeat(brackets), ")".repeat(brackets));
    let one = |at: usize| format!("{name}{at}: {open}{name}{}{close}\n", at + 1);
    let chain: String = (0..count).map(one).collect();
    Rule::Lark(format!("start: {name}0\n{chain}{name}{count}: \"a\"\n"))
}

/// A schema of `count` references, each to the next one and inside of `around` lists.
fn references(count: usize, around: usize) -> Rule {
    let reference = |at: usize| json!({ "$ref": format!("#/$defs/{at}") });
    let one = |at: usize| {
        let inside = (0..around).fold(reference(at + 1), |inner, _| json!({ "anyOf": [inner] }));
        (at.to_string(), inside)
    };
    let mut schema = reference(0);
    let mut all: serde_json::Map<_, _> = (0..count - 1).map(one).collect();
    all.insert((count - 1).to_string(), json!({ "type": "null" }));
    schema["$defs"] = all.into();
    Rule::JsonSchema(schema)
}

#[test]
fn the_longest_chains_that_are_accepted_are_compiled() {
    let bench = Bench::new(sentence_piece());
    for name in ["r", "R"] {
        for brackets in [0, 1, 27] {
            let longest = (MAX_DEFINITIONS - 2) / (1 + brackets);
            bench.compile(&chain(name, longest, brackets));
            let refusal = bench.refusal(&chain(name, longest + 1, brackets));
            assert!(refusal.contains("more than 4000 definitions"), "{refusal}");
        }
    }
    for around in [0, 1, 29] {
        let longest = 1 + (MAX_REFERENCE_DEPTH - 1) / (3 + 2 * around);
        bench.compile(&references(longest, around));
        let refusal = bench.refusal(&references(longest + 1, around));
        assert!(
            refusal.contains("more than 10000 values around"),
            "{refusal}"
        );
    }
}

#[test]
fn references_that_are_replaced_by_copies_are_counted() {
    let bench = Bench::new(sentence_piece());
    // Each has the next one twice. Next to a `type` it is copied, alone it is not.
    let doubled = |count: usize, more: &str| {
        let next = |at: usize| format!("{{{more}\"$ref\":\"#/$defs/{}\"}}", at + 1);
        let one = |at: usize| {
            let both = json!({ "l": 0, "r": 0 })
                .to_string()
                .replace('0', &next(at));
            format!("\"{at}\":{{\"type\":\"object\",\"properties\":{both}}},")
        };
        let all: String = (0..count).map(one).collect();
        let last = format!("\"{count}\":{{\"type\":\"object\"}}");
        let text = format!("{{\"$ref\":\"#/$defs/0\",\"$defs\":{{{all}{last}}}}}");
        Rule::JsonSchema(serde_json::from_str(&text).unwrap())
    };
    let kind = "\"type\":\"object\",";
    bench.compile(&doubled(8, kind));
    bench.compile(&doubled(60, "\"title\":\"x\","));
    let refusal = bench.refusal(&doubled(60, kind));
    assert!(refusal.contains("more than 300000 values"), "{refusal}");
    // A schema may refer to itself.
    bench.compile(&Rule::JsonSchema(json!({
        "type": "object", "allOf": [{ "properties": { "next": { "$ref": "#" } } }, { "required": ["next"] }],
    })));
    // Where a name leads is not known here.
    let named = |count: usize| {
        let all: Vec<_> = (0..count).map(|_| json!({ "$ref": "#x" })).collect();
        let x = json!({ "$anchor": "x", "type": "null" });
        Rule::JsonSchema(json!({ "allOf": all, "$defs": { "x": x } }))
    };
    bench.compile(&named(2));
    let names = bench.refusal(&Rule::JsonSchema(json!({
        "allOf": (0..9).map(|at| json!({ "$ref": format!("#x{at}") })).collect::<Vec<_>>(),
    })));
    assert!(names.contains("more than 8 `$ref`s"), "{names}");
}

#[test]
fn schemas_inside_of_grammars_are_checked_and_have_little_white_space() {
    let bench = Bench::new(sentence_piece());
    let inside = |schema: &Value| Rule::Lark(format!("start: \"a\" %json {schema} \"b\"\n"));
    let wide = format!("a[1,{}2]b", " ".repeat(50));
    let list = json!({ "type": "array" });
    bench.assert_texts(&inside(&list), &["a[1, 2]b"], &[&wide, "a[1"]);
    let names = (0..1001).map(|at| (format!("p{at}"), json!({})));
    let many = json!({ "properties": names.collect::<serde_json::Map<_, _>>() });
    for (rule, part) in [
        (inside(&many), "more than 1000 properties"),
        (
            Rule::Lark("start: %json {\"a\"".into()),
            "%json: EOF while parsing",
        ),
        (Rule::Lark("start: \"a".into()), "a string without an end"),
        (
            Rule::Lark("start: /a\\/".into()),
            "a regular expression without an end",
        ),
    ] {
        let refusal = bench.refusal(&rule);
        assert!(refusal.contains(part), "{refusal}");
    }
}

#[test]
fn all_properties_that_are_accepted_can_be_left_out() {
    let bench = Bench::new(sentence_piece());
    let pattern = |at: usize| json!({ "type": "string", "pattern": format!("^[a-z]{{1,{}}}x$", 10 + at % 50) });
    let names = (0..MAX_PROPERTIES).map(|at| (format!("p{at}"), pattern(at)));
    let schema =
        json!({ "type": "object", "properties": names.collect::<serde_json::Map<_, _>>() });
    bench.assert_texts(
        &Rule::JsonSchema(schema),
        &["{}", r#"{"p3":"abx","p500":"yx","p999":"ax"}"#],
        &[r#"{"p3":"abc"}"#],
    );
}

#[test]
fn a_text_may_use_more_memory_than_its_share_while_all_use_little() {
    let bench = Bench::new(sentence_piece());
    let rule = Rule::Regex("[ab]{1,3000}1[ab]{1,3000}".into());
    // What a text with so many tokens needs.
    let follow = |compiled: &dyn Constraint, tokens: usize| {
        let mut state = compiled.start();
        let mut mask = vec![0u32; bench.size.div_ceil(32) as usize];
        for _ in 0..tokens {
            state.allow(&mut mask)?;
            state.advance(bench.tokenizer.token_id("a").unwrap())?;
        }
        Ok::<_, String>(state)
    };
    let limited = |each, all| {
        let compiler = Compiler::new(&bench.tokenizer, bench.size).unwrap();
        compiler.with_memory(each, all).compile(&rule).unwrap()
    };
    let refusal = follow(&*limited(1000, 1000), 300).err().unwrap();
    assert!(
        refusal.contains("the limits are 1000 and 1000"),
        "{refusal}"
    );
    assert!(follow(&*limited(64 << 20, 0), 300).is_ok());
    // The memory of a text that has ended is free again.
    let compiled = limited(0, 4 << 20);
    for _ in 0..50 {
        assert!(follow(&*compiled, 300).is_ok());
    }
    let kept: Vec<_> = (0..1000)
        .map_while(|_| follow(&*compiled, 300).ok())
        .collect();
    assert!((1..1000).contains(&kept.len()), "{}", kept.len());
}

#[test]
fn a_copy_of_a_text_continues_independently() {
    let bench = Bench::new(sentence_piece());
    let rule = bench.compile(&Rule::Regex("a(ab|1b)".into()));
    let [a, b, one] = ["a", "b", "1"].map(|text| bench.tokenizer.token_id(text).unwrap());
    let mask_of = |state: &mut dyn ConstraintState| {
        let mut mask = vec![0u32; bench.size.div_ceil(32) as usize];
        let next = state.allow(&mut mask).unwrap();
        let allowed = [a, b, one].map(|id| mask[id as usize / 32] >> (id % 32) & 1 == 1);
        (next, allowed)
    };
    let mut text = rule.start();
    text.advance(a).unwrap();

    let mut copy = text.fork().unwrap();
    assert_eq!(mask_of(&mut *copy), (Next::Token, [true, false, true]));
    copy.advance(one).unwrap();
    assert_eq!(mask_of(&mut *copy), (Next::Token, [false, true, false]));
    let mut stopped = copy.fork().unwrap();
    (stopped.stopper().unwrap())();
    assert!(stopped.advance(b).is_err());
    copy.advance(b).unwrap();
    assert_eq!(mask_of(&mut *copy).0, Next::End);
    drop(copy);

    assert_eq!(mask_of(&mut *text), (Next::Token, [true, false, true]));
    text.advance(a).unwrap();
    text.advance(b).unwrap();
    assert_eq!(mask_of(&mut *text).0, Next::End);
}

#[test]
fn a_text_that_uses_much_of_its_memory_has_no_copies() {
    let bench = Bench::new(sentence_piece());
    let compiler = Compiler::new(&bench.tokenizer, bench.size).unwrap();
    let rule = Rule::Regex("[ab]{1,3000}1[ab]{1,3000}".into());
    let compiled = compiler.with_memory(200_000, 4 << 20).compile(&rule);
    let mut state = compiled.unwrap().start();
    let a = bench.tokenizer.token_id("a").unwrap();
    let mut mask = vec![0u32; bench.size.div_ceil(32) as usize];
    let mut copies = 0;
    for _ in 0..300 {
        state.allow(&mut mask).unwrap();
        copies += u32::from(state.fork().is_some());
        state.advance(a).unwrap();
    }
    assert!((1..300).contains(&copies), "{copies}");
}

/// The tests of JSON Schema's authors for draft 2020-12, where they are here.
fn suite() -> Option<PathBuf> {
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/json-schema/draft2020-12");
    let folder = std::env::var_os("WCUDA_SCHEMA_SUITE").map_or(fetched, PathBuf::from);
    if !folder.exists() {
        println!("skipped: no test suite of JSON Schema; WCUDA_SCHEMA_SUITE names none");
        return None;
    }
    Some(folder)
}

#[test]
fn the_suite_of_json_schema_has_no_false_accepts() {
    let Some(folder) = suite() else { return };
    let bench = Bench::real().unwrap_or_else(|| Bench::new(sentence_piece()));
    let (mut cases, mut agree, mut refused, mut unsupported) = (0, 0, Vec::new(), 0);
    let mut false_accepts = Vec::new();
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        })
        .collect();
    files.sort();
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let groups: Vec<Value> = serde_json::from_str(&text).unwrap();
        for group in groups {
            let tests = group["tests"].as_array().unwrap();
            cases += tests.len();
            let rule = Rule::JsonSchema(group["schema"].clone());
            let Ok(rule) = bench.compiler.compile(&rule) else {
                unsupported += tests.len();
                continue;
            };
            for test in tests {
                let tokens = bench.encode(&test["data"].to_string());
                let accepted = bench.lets_through(&*rule, &tokens);
                let name = format!("{}: {}", group["description"], test["description"]);
                match (accepted, test["valid"] == true) {
                    (true, false) => false_accepts.push(name),
                    (false, true) => refused.push(name),
                    _ => agree += 1,
                }
            }
        }
    }
    println!(
        "{cases} cases: {agree} agree, {} refused wrongly, {unsupported} of schemas that are not supported",
        refused.len()
    );
    let (count, time) = bench.masks.get();
    println!(
        "{count} masks of {} tokens, {:?} on average",
        bench.size,
        time / count
    );
    assert_eq!(false_accepts, Vec::<String>::new());
    assert_eq!(cases, 1257);
    assert!(agree >= 567, "{agree} agree; wrongly refused: {refused:?}");
}

/// Whether a value has a schema, as far as those above go.
fn is_valid(schema: &Value, value: &Value) -> bool {
    let number = |name: &str| schema[name].as_f64();
    let type_fits = match schema["type"].as_str() {
        None => true,
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("integer") => value.is_i64(),
        Some("number") => value.is_number(),
        Some(other) => panic!("{other}"),
    };
    let any = schema["anyOf"].as_array();
    let one = schema["enum"].as_array();
    let size = match value {
        Value::Array(list) => Some(("minItems", "maxItems", list.len() as f64)),
        Value::String(text) => Some(("minLength", "maxLength", text.chars().count() as f64)),
        Value::Number(number) => Some(("minimum", "maximum", number.as_f64().unwrap())),
        _ => None,
    };
    let size_fits = size.is_none_or(|(least, most, size)| {
        number(least).is_none_or(|least| size >= least)
            && number(most).is_none_or(|most| size <= most)
    });
    let parts_fit = match value {
        Value::Array(list) => list.iter().all(|item| is_valid(&schema["items"], item)),
        Value::Object(object) => {
            let properties = schema["properties"].as_object().unwrap();
            let known =
                |(name, value)| properties.get(name).is_some_and(|own| is_valid(own, value));
            let names = schema["required"].as_array().unwrap().iter();
            object.iter().all(known) && { names }
                .all(|name| object.contains_key(name.as_str().unwrap()))
        }
        _ => true,
    };
    type_fits
        && size_fits
        && parts_fit
        && any.is_none_or(|any| any.iter().any(|schema| is_valid(schema, value)))
        && one.is_none_or(|one| one.contains(value))
}

/// Answers of the real model: as many under each of ten schemas as `RULE_GENERATIONS` says, or one under each of
/// three. At least 95 of 100 end by themselves, and all of those are valid.
#[test]
fn a_model_answers_with_valid_json() {
    let Some(path) = real_model::real_model() else {
        return;
    };
    let count = std::env::var("RULE_GENERATIONS")
        .ok()
        .and_then(|count| count.parse().ok());
    let (used, count): (usize, u32) = count.map_or((3, 1), |count| (10, count));
    let gguf = Gguf::open(path).unwrap();
    let context = CudaContext::builder()
        .backend(Backend::Host)
        .host_threads(2)
        .open()
        .unwrap();
    let model = Model::load(&context, &gguf).unwrap();
    let options = EngineOptions::new()
        .max_sequences(16)
        .max_batch_tokens(256)
        .kv_tokens(16 << 10);
    let mut service_options = Options::default();
    // Others use the machine, too.
    (service_options.mask_time, service_options.queue_timeout) = (None, Duration::MAX);
    let service = Service::with_model(&model, &options, service_options).unwrap();
    let compiler =
        Compiler::new(service.tokenizer().unwrap(), model.info().vocabulary_size).unwrap();
    let mut running = Vec::new();
    for schema in schemas::schemas().into_iter().take(used) {
        let rule = compiler.compile(&Rule::JsonSchema(schema.clone())).unwrap();
        for seed in 0..count {
            let mut request = Request::user("Describe the weather in Rome, as JSON.");
            request.constraint = Some(Constrained::new(rule.clone()));
            request.sampling = Sampling::with_temperature(0.8, seed.into());
            request.max_tokens = Some(400);
            running.push((schema.clone(), service.submit(&request).unwrap()));
        }
    }
    let (all, mut ended) = (running.len(), 0);
    for (schema, events) in running {
        let (mut text, mut reason) = (String::new(), None);
        for event in events {
            match event {
                Event::Token(token) => text += &token.text,
                Event::Finished {
                    reason: why,
                    text: rest,
                    ..
                } => {
                    text += &rest;
                    reason = Some(why);
                }
                Event::Failed(error) => panic!("{error}: {text}"),
                _ => {}
            }
        }
        if reason == Some(FinishReason::Eos) {
            ended += 1;
            let value =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert!(is_valid(&schema, &value), "{value} under {schema}");
        }
    }
    println!("{ended} of {all} answers ended by themselves");
    assert!(ended >= all * 19 / 20, "{ended} of {all}");
}
