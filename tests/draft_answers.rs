//! Real models: the answers of a service that verifies drafts are, token for token, those of one that does not, whatever
//! guesses them.
//!
//! On a device they are so with batch invariance, because the number of rows in a step changes no bits then.
//!
//! The clock of the service that is compared stands still, so that costs are unknown and every draft is verified.
//! `DRAFT_PROMPTS` sets the number of prompts for each model; with it `CODER_MODEL` names a second one.
#![cfg(feature = "constraints")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use worker_cuda::generate::constraints::{Compiler, Rule};
use worker_cuda::generate::service::{
    Clock, Constrained, Drafting, Event, EventReceiver, ModelEngine, Options, Request, Usage,
};
use worker_cuda::generate::{FinishReason, ModelDraft, NgramDraft, Service};
use worker_cuda::text::{Tokenizer, Vocabulary};
use worker_cuda::{Backend, CudaContext, EngineOptions, Gguf, KvType, Model, Sampling, Token};

#[path = "support/gpu.rs"]
mod gpu;
#[path = "support/random_model.rs"]
mod random_model;
#[path = "support/real_model.rs"]
mod real_model;

const NAMES: [&str; 8] = [
    "orders",
    "invoices",
    "customers",
    "tickets",
    "shipments",
    "readings",
    "accounts",
    "messages",
];

/// A part of a program that differs with `number`.
fn code(number: usize) -> String {
    let name = NAMES[number % NAMES.len()];
    let limit = 10 + 7 * number;
    format!(
        "class {name}_store:\n    def __init__(self, path):\n        self.path = path\n        self.{name} = []\n\n    \
         def load(self):\n        with open(self.path) as file:\n            for line in file:\n                \
         self.{name}.append(line.strip())\n        return len(self.{name})\n\n    \
         def first(self, count={limit}):\n        return self.{name}[:count]\n"
    )
}

/// An edit of a program, answered greedily.
fn edit(number: usize) -> Request {
    let program = code(number);
    let mut request = Request::user(format!(
        "Add a method `clear` at the end of this class, which empties the list. Write the whole class, and nothing \
         else.\n\n```python\n{program}```"
    ));
    request.prediction = format!("```python\n{program}");
    request
}

/// A document to repeat as JSON that a rule describes.
fn copy(number: usize, rule: &Constrained) -> Request {
    let name = NAMES[number % NAMES.len()];
    let document = format!(
        "{{\"name\": \"{name}_store\", \"methods\": [\"load\", \"first\", \"clear_{number}\", \"last_{name}\"]}}"
    );
    let mut request = Request::user(format!("Repeat this JSON exactly.\n\n{document}"));
    request.prediction = document;
    request.constraint = Some(rule.clone());
    request
}

/// Edits, sampled summaries with a mask or penalties, and JSON.
fn request(number: usize, rule: &Constrained, vocabulary_size: u32) -> Request {
    let mut request = match number % 4 {
        0 => edit(number / 4),
        1 => Request::user(format!(
            "Repeat this text twice, then explain it.\n\n{}",
            code(number)
        )),
        2 => Request::user(format!("List the words of this text.\n\n{}", code(number))),
        _ if number % 8 == 3 => copy(number / 8, rule),
        _ => Request::user(format!(
            "Describe this class as JSON with name and methods.\n\n{}",
            code(number)
        )),
    };
    let seed = number as u64;
    match number % 4 {
        1 => {
            request.sampling = Sampling::with_temperature(0.7, seed);
            request.sampling.top_p = 0.9;
            request.sampling.mask = vec![0xffff_7fff; vocabulary_size.div_ceil(32) as usize];
        }
        2 => {
            request.sampling = Sampling::with_temperature(0.4, seed);
            request.sampling.repetition_penalty = 1.05;
            request.sampling.presence_penalty = 0.2;
        }
        3 => {
            if number % 16 == 7 {
                request.sampling = Sampling::with_temperature(0.6, seed);
            }
            request.constraint = Some(rule.clone());
        }
        _ => {}
    }
    request.sampling.top_logprobs = 2;
    request
}

/// Tokens with the bits of all log probabilities, text and end.
type Output = (
    Vec<(Token, u32, Vec<(Token, u32)>)>,
    String,
    Option<FinishReason>,
);

fn output(events: EventReceiver) -> (Output, Usage) {
    let (mut output, mut total) = (Output::default(), None);
    for event in events {
        match event {
            Event::Token(token) => {
                let bits = |&(id, logprob): &(Token, f32)| (id, logprob.to_bits());
                let top = token.top.iter().map(bits).collect();
                output.0.push((token.token, token.logprob.to_bits(), top));
                output.1 += &token.text;
            }
            Event::Finished { reason, text, .. } => {
                output.1 += &text;
                output.2 = Some(reason);
            }
            Event::Done(usage) => total = Some(usage),
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    (output, total.expect("an end"))
}

/// Drafts of a row.
const DRAFTS: u32 = 8;

fn ngrams() -> Drafting {
    Drafting::new(DRAFTS as usize, || Box::new(NgramDraft::new()))
}

fn guesses_of(small: &Model, model: &Model) -> (ModelDraft, Drafting) {
    let options = ModelDraft::serving_options(small, KvType::F16).unwrap();
    let draft = ModelDraft::new(small, model, &options).unwrap();
    let drafting = drafting(&draft);
    (draft, drafting)
}

fn drafting(draft: &ModelDraft) -> Drafting {
    let draft = draft.clone();
    Drafting::new(DRAFTS as usize, move || Box::new(draft.clone()))
}

fn engine_options(model: &Model, drafts: u32) -> EngineOptions {
    EngineOptions::new()
        .batch_invariant(model.context().info().unwrap().backend == Backend::Cuda)
        .max_sequences(16)
        .max_batch_tokens(256)
        .max_top_logprobs(2)
        .max_draft_tokens(16 * drafts)
        .kv_tokens(16 << 10)
}

fn start(
    model: &Model,
    tokenizer: &Arc<Tokenizer>,
    drafting: Option<Drafting>,
    clock: Clock,
) -> Service {
    let drafts = if drafting.is_some() { DRAFTS } else { 0 };
    let engine = ModelEngine::new(model, &engine_options(model, drafts)).unwrap();
    start_engine(engine, tokenizer, drafting, clock)
}

/// A service whose guesses are those of a random draft head.
fn start_with_head(model: &Model, tokenizer: &Arc<Tokenizer>) -> (Service, ModelDraft) {
    let head = random_model::random_head(model, 2000, 1);
    let engine = engine_options(model, DRAFTS).draft_head(&head);
    let mut engine = ModelEngine::new(model, &engine).unwrap();
    let options = ModelDraft::serving_options(&head, KvType::F16).unwrap();
    let draft = engine.draft_head(&options).unwrap();
    let drafting = Some(drafting(&draft));
    (
        start_engine(engine, tokenizer, drafting, Clock::manual()),
        draft,
    )
}

fn start_engine(
    engine: ModelEngine,
    tokenizer: &Arc<Tokenizer>,
    drafting: Option<Drafting>,
    clock: Clock,
) -> Service {
    let mut options = Options::default();
    // Others use the machine, too.
    (options.mask_time, options.queue_timeout) = (None, Duration::MAX);
    options.clock = clock;
    options.drafting = drafting;
    Service::start(engine, Some(tokenizer.clone()), options).unwrap()
}

/// Tokens of requests one after the other, and seconds: of all, and after the first token of each.
fn time(service: &Service, requests: &[Request]) -> (Usage, [f64; 2]) {
    let (mut total, mut seconds) = (Usage::default(), [0.0; 2]);
    for request in requests {
        let begin = Instant::now();
        let mut events = service.submit(request).unwrap().peekable();
        while events
            .next_if(|event| !matches!(event, Event::Token(_)))
            .is_some()
        {}
        let first = Instant::now();
        let usage = events.find_map(|event| match event {
            Event::Done(usage) => Some(usage),
            _ => None,
        });
        let usage = usage.expect("an end");
        seconds[0] += begin.elapsed().as_secs_f64();
        seconds[1] += first.elapsed().as_secs_f64();
        total.completion_tokens += usage.completion_tokens;
        total.draft_tokens += usage.draft_tokens;
        total.accepted_draft_tokens += usage.accepted_draft_tokens;
    }
    (total, seconds)
}

fn compare(context: &CudaContext, path: &Path, prompts: usize, tokens: u32, measures: bool) {
    let model = Model::load(context, &Gguf::open(path).unwrap()).unwrap();
    let tokenizer = Arc::new(Tokenizer::from_gguf(model.gguf()).unwrap());
    let start = |drafting, clock| start(&model, &tokenizer, drafting, clock);
    let plain = start(None, Clock::system());
    let compiler = Compiler::new(&tokenizer, model.info().vocabulary_size).unwrap();
    let rule = Rule::JsonSchema(json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 40 },
            "methods": { "type": "array", "items": { "type": "string" }, "maxItems": 5 },
        },
        "required": ["name", "methods"],
    }));
    let rule = Constrained::new(compiler.compile(&rule).unwrap());
    let requests: Vec<Request> = (0..prompts)
        .map(|number| {
            let mut request = request(number, &rule, model.info().vocabulary_size);
            request.max_tokens = Some(tokens);
            request
        })
        .collect();

    let outputs = |service: &Service, requests: &[Request]| -> Vec<(Output, Usage)> {
        let running: Vec<_> = requests
            .iter()
            .map(|request| service.submit(request).unwrap())
            .collect();
        running.into_iter().map(output).collect()
    };
    let expected = outputs(&plain, &requests);
    let random = Vocabulary::from_gguf(model.gguf()).unwrap();
    let random = random_model::random_model(context, &random, 1);
    let ((of_random, by_random), (of_itself, by_itself)) =
        (guesses_of(&random, &model), guesses_of(&model, &model));
    let (of_head, head) = start_with_head(&model, &tokenizer);
    let manual = |drafting| start(Some(drafting), Clock::manual());
    for (name, drafted, least) in [
        ("prompt lookup", manual(ngrams()), 0.0),
        ("a random model", manual(by_random), 0.0),
        ("the model itself", manual(by_itself), 0.95),
        ("a random head", of_head, 0.0),
    ] {
        // At once, then a few alone, which have more drafts.
        let alone = requests.len().min(8);
        let mut found = outputs(&drafted, &requests);
        for request in &requests[..alone] {
            found.push(output(drafted.submit(request).unwrap()));
        }
        let (mut accepted, mut greedy, mut of_json) = (0, (0, 0), (0, 0));
        for (number, (found, usage)) in found.iter().enumerate() {
            let number = number.checked_sub(requests.len()).unwrap_or(number);
            assert_eq!(*found, expected[number].0, "{name}, prompt {number}");
            accepted += usage.accepted_draft_tokens;
            if requests[number].sampling.temperature == 0.0 {
                greedy.0 += usage.accepted_draft_tokens;
                greedy.1 += usage.draft_tokens;
            }
            if requests[number].constraint.is_some() {
                of_json.0 += usage.accepted_draft_tokens;
                of_json.1 += usage.draft_tokens;
            }
        }
        println!(
            "{}, {name}: {prompts} prompts, {accepted} of {} drafts held, of greedy answers {} of {}, of JSON {} of {}",
            path.display(),
            drafted.stats().draft_tokens,
            greedy.0,
            greedy.1,
            of_json.0,
            of_json.1
        );
        assert!(accepted > 0 || name.starts_with("a random"));
        // Whether masks are there in time depends on the machine, but not for every row.
        assert!(
            of_json.1 > 0 || name == "a random head",
            "{name}: JSON has no drafts"
        );
        assert!(greedy.1 > 0 && f64::from(greedy.0) >= least * f64::from(greedy.1));
        assert_eq!(drafted.drain(Duration::MAX), 0);
    }
    for draft in [of_random, of_itself, head] {
        let info = draft.info().unwrap();
        assert_eq!((info.sequence_count, info.kv_held_page_count), (0, 0));
    }
    assert_eq!(plain.stats().draft_tokens, 0);

    if measures {
        let edits: Vec<Request> = (0..8).map(edit).collect();
        let copies: Vec<Request> = (0..8).map(|number| copy(number, &rule)).collect();
        let drafted = start(Some(ngrams()), Clock::system());
        for (what, requests) in [("edits", &edits), ("copies of JSON", &copies)] {
            for (name, service) in [("without", &plain), ("with", &drafted)] {
                let (usage, seconds) = time(service, requests);
                let tokens = f64::from(usage.completion_tokens);
                println!(
                    "{what} one by one, {name} drafts: {tokens} tokens, {:.1} a second, after the first of each {:.1}, \
                     {} of {} drafts held",
                    tokens / seconds[0],
                    (tokens - requests.len() as f64) / seconds[1],
                    usage.accepted_draft_tokens,
                    usage.draft_tokens
                );
            }
        }
    }
}

/// The models that the environment names; few and short answers unless it says how many.
fn compare_answers(context: &CudaContext) {
    let Some(path) = real_model::real_model() else {
        return;
    };
    let count = std::env::var("DRAFT_PROMPTS").ok();
    let Some(count) = count.and_then(|count| count.parse().ok()) else {
        compare(context, &path, 4, 24, false);
        return;
    };
    compare(context, &path, count, 64, true);
    match std::env::var_os("CODER_MODEL") {
        Some(coder) => compare(context, Path::new(&coder), count, 64, true),
        None => println!("skipped: no second model; CODER_MODEL names none"),
    }
}

#[test]
fn answers_of_real_models_with_drafts_are_those_without() {
    let context = CudaContext::builder().backend(Backend::Host);
    compare_answers(&context.host_threads(2).open().unwrap());
}

#[test]
fn gpu_answers_of_real_models_with_drafts_are_those_without() {
    if let Some(context) = gpu::gpu() {
        compare_answers(&context);
    }
}
