//! Processor time of masks: answers of a model under ten schemas, token by token. `./dev bench` runs it.

use worker_cuda::Gguf;
use worker_cuda::generate::constraints::{Compiler, Rule};
use worker_cuda::generate::service::Constraint;
use worker_cuda::text::{EncodeOptions, Tokenizer};

#[path = "../tests/support/processor_time.rs"]
mod processor_time;
#[path = "../tests/support/real_model.rs"]
mod real_model;
#[path = "../tests/support/schemas.rs"]
mod schemas;

const ROUNDS: u32 = 40;
const TARGET: f64 = 30.0;

/// Masks, and the microseconds that they took.
#[derive(Clone, Copy, Default)]
struct Cost {
    masks: f64,
    time: f64,
}

impl Cost {
    fn mean(self) -> f64 {
        self.time / self.masks
    }

    fn add(&mut self, other: Self) {
        self.masks += other.masks;
        self.time += other.time;
    }
}

fn processor_microseconds() -> f64 {
    std::thread::yield_now(); // Linux counts the time of this thread then
    processor_time::processor_nanoseconds() as f64 / 1e3
}

/// Follows answers, each from its beginning to its end.
fn follow(rule: &dyn Constraint, answers: &[Vec<u32>], mask: &mut [u32]) -> Cost {
    let begin = processor_microseconds();
    for tokens in answers {
        let mut state = rule.start();
        for &token in tokens {
            mask.fill(0);
            state.allow(mask).expect("a mask");
            assert_ne!(mask[token as usize / 32] >> (token % 32) & 1, 0, "{token}");
            state.advance(token).expect("an allowed token");
        }
        mask.fill(0);
        state.allow(mask).expect("a mask");
    }
    let masks: usize = answers.iter().map(|tokens| tokens.len() + 1).sum();
    Cost {
        masks: masks as f64,
        time: processor_microseconds() - begin,
    }
}

fn main() {
    let Some(path) = real_model::real_model() else {
        return;
    };
    let gguf = Gguf::open(path).expect("a model");
    let tokenizer = Tokenizer::from_gguf(&gguf).expect("a tokenizer");
    let size = tokenizer.token_count() as u32;
    let compiler = Compiler::new(&tokenizer, size).expect("a compiler");
    let mut mask = vec![0; size.div_ceil(32) as usize];
    let (mut first, mut later) = (Cost::default(), Cost::default());
    println!("masks of {size} tokens under ten schemas, processor time with the tokens taken:");
    for (schema, answers) in schemas::schemas().into_iter().zip(schemas::ANSWERS) {
        let encode = |text| tokenizer.encode(text, EncodeOptions::default());
        let answers = answers.map(|text| encode(text).expect("tokens"));
        let name: String = schema["properties"].to_string().chars().take(70).collect();
        let rule = compiler.compile(&Rule::JsonSchema(schema)).expect("a rule");
        let new = follow(&*rule, &answers[..1], &mut mask);
        let mut used = Cost::default();
        for _ in 0..ROUNDS {
            used.add(follow(&*rule, &answers, &mut mask));
        }
        println!(
            "  {:6.1} us, first answer {:6.1} us: {name}",
            used.mean(),
            new.mean()
        );
        first.add(new);
        later.add(used);
    }
    println!(
        "{} masks: mean {:.1} us, {} of first answers {:.1} us; target {TARGET} us: {}",
        later.masks,
        later.mean(),
        first.masks,
        first.mean(),
        if later.mean() <= TARGET {
            "met"
        } else {
            "missed"
        }
    );
}
