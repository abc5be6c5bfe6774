//! Many answers at once: `cargo run --release --example 10-service -- model.gguf`

use std::time::Duration;

use worker_cuda::generate::Service;
use worker_cuda::generate::service::{Event, ModelEngine, Options, Request};
use worker_cuda::{CudaContext, Gguf, Model};

const QUESTIONS: [&str; 4] = [
    "Why is the sky blue? One sentence.",
    "Why is snow white? One sentence.",
    "Name three colours.",
    "What is 2 + 2?",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os()
        .nth(1)
        .ok_or("usage: 10-service FILE.gguf")?;
    let model = Model::load(&CudaContext::auto()?, &Gguf::open(path)?)?;
    let engine = ModelEngine::serving_options(&model)?.max_sequence_tokens(1024);
    let service = Service::with_model(&model, &engine, Options::default())?;

    // One thread for each; the engine computes them in the same steps.
    std::thread::scope(|scope| {
        for question in QUESTIONS {
            let service = &service;
            scope.spawn(move || match answer(service, question) {
                Ok(text) => println!("{question}\n  {text}"),
                Err(error) => println!("{question}\n  failed: {error}"),
            });
        }
    });
    let stats = service.stats();
    println!("{} tokens in {} steps", stats.generated_tokens, stats.steps);
    service.drain(Duration::from_secs(30));
    Ok(())
}

fn answer(service: &Service, question: &str) -> Result<String, Box<dyn std::error::Error>> {
    let mut request = Request::user(question);
    request.max_tokens = Some(64);
    let mut answer = String::new();
    for event in service.submit(&request)? {
        match event {
            Event::Token(token) => answer += &token.text,
            Event::Finished { text, .. } => answer += &text,
            Event::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    Ok(answer)
}
