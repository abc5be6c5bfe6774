//! `logits`: the model's logits for given tokens (teacher forcing).

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use serde::Deserialize;
use worker_cuda::{Engine, Row, Step, StepOutput, Token};

use crate::failure::{Failure, Outcome};
use crate::input;
use crate::load;
use crate::options::{DeviceArgs, EngineArgs, ModelArgs};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// A JSON file {"sequences": [[ids…], …]}
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    /// Output file: f32, little-endian, (positions of all sequences, vocabulary)
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

#[derive(Deserialize)]
struct Sequences {
    sequences: Vec<Vec<Token>>,
}

/// Positions per step; all their logits are in memory at once.
const ROWS: u32 = 512;

pub fn run(args: Args) -> Outcome {
    let Sequences { sequences } = input::json(&args.tokens)?;
    let longest = sequences.iter().map(Vec::len).max().unwrap_or(0);
    let gguf = load::gguf(&args.model.model)?;
    let model = load::model(&args.device, &gguf)?;
    let mut options = args.engine.options(model.info().context_length);
    if args.engine.context.is_none() {
        let length =
            u32::try_from(longest.max(1)).map_err(|_| Failure::new("a sequence is too long"))?;
        options = options.max_sequence_tokens(length);
    }
    let rows = args.engine.batch.min(ROWS);
    let mut engine = Engine::new(
        &model,
        &options.max_batch_tokens(rows).max_logits_rows(rows),
    )?;
    let file = File::create(&args.out).map_err(|error| Failure::file(&args.out, &error))?;
    let mut out = BufWriter::new(file);
    let mut count = 0;
    for tokens in &sequences {
        count += write_sequence(&mut engine, tokens, rows as usize, &mut out)
            .map_err(|failure| Failure::new(format!("{}: {failure}", args.out.display())))?;
    }
    out.flush()
        .map_err(|error| Failure::file(&args.out, &error))?;
    eprintln!(
        "{count} positions of {} logits",
        model.info().vocabulary_size
    );
    Ok(())
}

fn write_sequence(
    engine: &mut Engine,
    tokens: &[Token],
    rows: usize,
    out: &mut impl Write,
) -> Outcome<usize> {
    let sequence = engine.create_sequence()?;
    let mut output = StepOutput::default();
    for piece in tokens.chunks(rows) {
        let step = Step::new().row(Row::tokens(&sequence, piece).logits_all());
        let ticket = engine.submit(&step)?;
        engine.wait_into(ticket, None, &mut output)?;
        let logits = output.logits(&output.rows()[0]);
        let bytes: Vec<u8> = logits
            .iter()
            .flat_map(|logit| logit.to_le_bytes())
            .collect();
        out.write_all(&bytes)?;
    }
    Ok(tokens.len())
}
