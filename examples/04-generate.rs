//! A streamed answer: `cargo run --release --example 04-generate -- model.gguf`

use std::io::Write;

use worker_cuda::generate::{Event, Request, Session};
use worker_cuda::{CudaContext, EngineOptions, Gguf, Model};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os()
        .nth(1)
        .ok_or("usage: 04-generate FILE.gguf")?;
    let model = Model::load(&CudaContext::auto()?, &Gguf::open(path)?)?;
    let mut session = Session::new(&model, &EngineOptions::new().max_sequence_tokens(1024))?;
    let request = Request::user("Why is the sky blue? One sentence.").max_tokens(64);
    for event in session.generate(&request)? {
        match event? {
            Event::Text(text) => print!("{text}"),
            Event::Done(summary) => println!("\n({} tokens)", summary.tokens),
            _ => {}
        }
        std::io::stdout().flush()?;
    }
    Ok(())
}
