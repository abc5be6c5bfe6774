//! A server whose engine fails in every step and whose memory is not on its device, for `tools/clients/page.py`. It
//! prints its address.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use worker_cuda::generate::Service;
use worker_cuda::generate::service::{EngineLimits, Observer, Options, ScriptedEngine};
use worker_cuda::text::{ChatTemplate, TokenType, Tokenizer, Vocabulary};
use worker_orcd::serve::{self, Address, Metrics, ServedModel, Server};

/// One token for each character; 0 is unknown.
fn vocabulary() -> Vocabulary {
    let letters = (' '..='~').map(|letter| letter.to_string().replace(' ', "\u{2581}"));
    let tokens: Vec<String> = std::iter::once("<unk>".into()).chain(letters).collect();
    let mut token_types = vec![TokenType::Normal; tokens.len()];
    token_types[0] = TokenType::Unknown;
    Vocabulary {
        model: "llama".into(),
        scores: vec![0.0; tokens.len()],
        tokens,
        token_types,
        unk_id: Some(0),
        ..Vocabulary::default()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let vocabulary = vocabulary();
    let limits = EngineLimits::new(64, vocabulary.tokens.len() as u32);
    let tokenizer = Arc::new(Tokenizer::from_vocabulary(vocabulary)?);
    let engine = ScriptedEngine::new(limits, |prompt, _| prompt.to_vec());
    engine.control().fail(u64::MAX);
    let template = Arc::new(ChatTemplate::new(
        "{% for m in messages %}{{ m.content }}{% endfor %}",
    )?);
    let metrics = Arc::new(Metrics::default());
    let mut options = Options::default();
    options.chat_template = Some(Arc::clone(&template));
    options.observer = Some(Arc::clone(&metrics) as Arc<dyn Observer>);
    let service = Service::start(engine, Some(tokenizer), options)?;
    let mut model = ServedModel::new("failing");
    model.template = Some(template);
    model.residency = Some(Arc::new(|| Err("'weights' is managed memory".into())));
    let mut options = serve::Options::default();
    options.residency_period = Duration::from_millis(10);
    let address = Address::Tcp(([127, 0, 0, 1], 0).into());
    let server = Server::bind(&address, service, model, options, metrics)?;
    println!("listening on {}", server.url()?);
    server.run()?;
    Ok(())
}
