//! `bench`: measures the speed of prefill and decode.

use std::collections::VecDeque;
use std::io::Write;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use serde_json::{Value, json};
use worker_cuda::{Engine, Row, RowStatus, Sampling, Sequence, Step, StepOutput, Ticket, Token};

use crate::failure::{Failure, Outcome};
use crate::input::print_json;
use crate::load;
use crate::machine::{self, Machine};
use crate::options::{DeviceArgs, EngineArgs, ModelArgs};
use crate::size;
use crate::steps;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// Lengths of the prompts for prefill
    #[arg(
        long,
        value_name = "TOKENS",
        value_delimiter = ',',
        default_value = "512"
    )]
    prompt_tokens: Vec<u32>,
    /// Tokens generated per decode measurement
    #[arg(long, value_name = "TOKENS", default_value_t = 128,
          value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,
    /// Positions before the first generated token
    #[arg(long, value_name = "TOKENS", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..))]
    depth: u32,
    /// Sequences that are decoded at once
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    streams: u32,
    /// Sampling temperature of decode; 0: always the most probable token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f32,
    /// Measurements of each kind, after one warm-up
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Print the nodes of a step with their median times, for one token and for the first prompt
    #[arg(long)]
    profile: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// One row of the table.
struct Measured {
    work: String,
    tokens: u32,
    /// Sorted, the shortest first.
    times: Vec<Duration>,
    /// Processor time of the same runs, in their order. That of decode includes its prompts.
    processor_seconds: Vec<f64>,
    /// Bytes of weights read per token, for decode.
    bytes_per_token: Option<u64>,
}

impl Measured {
    fn best(&self) -> f64 {
        f64::from(self.tokens) / self.times[0].as_secs_f64()
    }

    fn median(&self) -> f64 {
        f64::from(self.tokens) / self.times[self.times.len() / 2].as_secs_f64()
    }

    /// Bytes of weights per second at the best time.
    fn rate(&self) -> Option<f64> {
        self.bytes_per_token.map(|bytes| bytes as f64 * self.best())
    }

    /// Share of the memory bandwidth, in percent.
    fn share(&self, machine: &Machine) -> Option<f64> {
        self.rate().and_then(|rate| machine.share(rate))
    }
}

pub fn run(args: Args) -> Outcome {
    let gguf = load::gguf(&args.model.model)?;
    let started = Instant::now();
    let model = load::model(&args.device, &gguf)?;
    let load_time = started.elapsed();
    let longest = args.prompt_tokens.iter().copied().max().unwrap_or(1);
    let need = longest.max(args.depth.saturating_add(args.tokens));
    let mut options = args.engine.options(model.info().context_length);
    options = options.max_sequences(args.streams);
    if args.engine.context.is_none() {
        options = options.max_sequence_tokens(need);
    }
    let mut bench = Bench {
        engine: Engine::new(&model, &options)?,
        batch: args.engine.batch as usize,
        vocabulary: model.info().vocabulary_size,
    };
    bench.engine.warm_up()?;
    bench.check()?;

    if args.profile {
        let prompt = args.prompt_tokens.first().copied().unwrap_or(1);
        let prompt = prompt.min(args.engine.batch);
        return bench.profile(&[(1, args.depth), (prompt, 0)], args.repeat, args.json);
    }
    let mut rows = Vec::new();
    for &length in &args.prompt_tokens {
        let (times, processor_seconds) = measure(args.repeat, || bench.prefill(length))?;
        rows.push(Measured {
            work: format!("prefill {length}"),
            tokens: length,
            times,
            processor_seconds,
            bytes_per_token: None,
        });
    }
    let (times, processor_seconds) = measure(args.repeat, || bench.decode(&args))?;
    let mut work = format!("decode {} at {}", args.tokens, args.depth);
    if args.streams > 1 {
        work += &format!(", {} streams", args.streams);
    }
    // A step reads them once for all streams.
    let bytes_per_token = Some(machine::bytes_per_token(&gguf)? / u64::from(args.streams));
    rows.push(Measured {
        work,
        tokens: args.tokens * args.streams,
        times,
        processor_seconds,
        bytes_per_token,
    });

    let machine = Machine::of(model.context())?;
    if args.json {
        return print_json(&to_json(&rows, &machine, load_time));
    }
    print_table(&rows, &machine, load_time)
}

/// Length of the prompt that is computed twice before measuring, where the engine has room for it.
const CHECKED_TOKENS: u32 = 24;

struct Bench {
    engine: Engine,
    batch: usize,
    vocabulary: u32,
}

impl Bench {
    /// Arbitrary tokens, the same each time.
    fn prompt(&self, length: u32) -> Vec<Token> {
        let id = |i: u32| i.wrapping_mul(2_654_435_761).wrapping_add(12345) % self.vocabulary;
        (0..length).map(id).collect()
    }

    /// Checks results before measuring: a prompt in one step and in pieces must agree.
    fn check(&mut self) -> Outcome {
        let greedy = Sampling::greedy();
        let length = self.engine.info()?.max_sequence_tokens.min(CHECKED_TOKENS);
        let prompt = self.prompt(length);
        let mut tokens = Vec::new();
        for pieces in [self.batch, self.batch.min(7)] {
            let sequence = self.engine.create_sequence()?;
            let mut output = StepOutput::default();
            for piece in prompt.chunks(pieces) {
                let row = Row::tokens(&sequence, piece).sample(&greedy);
                let ticket = self.engine.submit(&Step::new().row(row))?;
                self.engine.wait_into(ticket, None, &mut output)?;
            }
            let row = output.rows()[0];
            if row.status != RowStatus::Ok || !row.logprob.is_finite() {
                return Err(Failure::new(format!("the first step failed: {row:?}")));
            }
            tokens.push((row.token, row.logprob));
        }
        if (tokens[0].1 - tokens[1].1).abs() > 0.1 {
            return Err(Failure::new(format!(
                "a prompt in pieces gives different results: {tokens:?}"
            )));
        }
        Ok(())
    }

    /// Time to compute a prompt and sample one token.
    fn prefill(&mut self, length: u32) -> Outcome<Duration> {
        let prompt = self.prompt(length);
        let sequence = self.engine.create_sequence()?;
        let started = Instant::now();
        self.compute_prompt(&sequence, &prompt)?;
        Ok(started.elapsed())
    }

    /// Time to generate tokens of each stream after a prompt, with two steps in flight.
    fn decode(&mut self, args: &Args) -> Outcome<Duration> {
        let (mut sequences, mut samplings) = (Vec::new(), Vec::new());
        let prompt = self.prompt(args.depth);
        for stream in 0..u64::from(args.streams) {
            let sequence = self.engine.create_sequence()?;
            self.compute_prompt(&sequence, &prompt)?;
            sequences.push(sequence);
            samplings.push(Sampling::with_temperature(args.temperature, stream));
        }
        let mut output = StepOutput::default();
        let mut in_flight = VecDeque::new();
        let started = Instant::now();
        for _ in 0..args.tokens {
            if in_flight.len() == 2 {
                self.wait_oldest(&mut in_flight, &mut output)?;
            }
            let mut step = Step::new();
            for (sequence, sampling) in sequences.iter().zip(&samplings) {
                step = step.row(Row::feed_sampled(sequence).sample(sampling));
            }
            in_flight.push_back(self.engine.submit(&step)?);
        }
        while !in_flight.is_empty() {
            self.wait_oldest(&mut in_flight, &mut output)?;
        }
        Ok(started.elapsed())
    }

    fn compute_prompt(&mut self, sequence: &Sequence, prompt: &[Token]) -> Outcome {
        let greedy = Sampling::greedy();
        let mut output = StepOutput::default();
        let mut in_flight = VecDeque::new();
        let count = prompt.chunks(self.batch).len();
        for (index, piece) in prompt.chunks(self.batch).enumerate() {
            if in_flight.len() == 2 {
                self.wait_oldest(&mut in_flight, &mut output)?;
            }
            let row = Row::tokens(sequence, piece);
            let row = if index + 1 == count {
                row.sample(&greedy)
            } else {
                row
            };
            in_flight.push_back(self.engine.submit(&Step::new().row(row))?);
        }
        while !in_flight.is_empty() {
            self.wait_oldest(&mut in_flight, &mut output)?;
        }
        Ok(())
    }

    /// Runs `repeat` steps of `tokens` after `context` others, after one that is not counted. They compute
    /// logits and sample nothing: sampling is no node of the plan.
    fn steps(
        &mut self,
        (tokens, context): (u32, u32),
        repeat: u32,
        mut each: impl FnMut(&mut Engine, &StepOutput) -> Outcome,
    ) -> Outcome {
        let sequence = self.engine.create_sequence()?;
        if context > 0 {
            self.compute_prompt(&sequence, &self.prompt(context))?;
        }
        let prompt = self.prompt(tokens);
        let mut output = StepOutput::default();
        for index in 0..=repeat {
            let row = Row::tokens(&sequence, &prompt).logits_last();
            let ticket = self.engine.submit(&Step::new().row(row))?;
            self.engine.wait_into(ticket, None, &mut output)?;
            self.engine.truncate(&sequence, context)?;
            if index > 0 {
                each(&mut self.engine, &output)?; // the first warms up
            }
        }
        Ok(())
    }

    /// Prints the median time of each node, and the sum compared with the same step without profiling.
    fn profile(&mut self, shapes: &[(u32, u32)], repeat: u32, is_json: bool) -> Outcome {
        let mut values = Vec::new();
        let mut out = std::io::stdout().lock();
        for (index, &shape) in shapes.iter().enumerate() {
            let mut whole = Vec::new();
            self.steps(shape, repeat, |_, output| {
                whole.push(output.device_ns as f64 / 1e3);
                Ok(())
            })?;
            whole.sort_by(f64::total_cmp);
            let step_us = whole[whole.len() / 2];
            self.engine.set_profiling(true)?;
            let mut profiles = Vec::new();
            self.steps(shape, repeat, |engine, _| {
                profiles.push(engine.profile()?);
                Ok(())
            })?;
            self.engine.set_profiling(false)?;
            let Some(profile) = steps::medians(profiles) else {
                continue;
            };
            let nodes_us = steps::measured_us(&profile);
            if is_json {
                let mut value = steps::to_json(&profile, None);
                value["tokens"] = json!(shape.0);
                value["context"] = json!(shape.1);
                value["step_us"] = json!(step_us);
                value["nodes_us"] = json!(nodes_us);
                values.push(value);
                continue;
            }
            if index > 0 {
                writeln!(out)?;
            }
            let plural = if shape.0 == 1 { "" } else { "s" };
            writeln!(
                out,
                "step of {} token{plural} after {} in the context, medians of {repeat} steps",
                shape.0, shape.1
            )?;
            steps::print(&mut out, &profile, None)?;
            writeln!(
                out,
                "sum of the nodes {nodes_us:.1} us, the same step without profiling {step_us:.1} us: \
                 the nodes overlap by {:.1} us",
                nodes_us - step_us
            )?;
        }
        if is_json {
            return print_json(&json!({ "steps": values }));
        }
        Ok(())
    }

    fn wait_oldest(
        &mut self,
        in_flight: &mut VecDeque<Ticket>,
        output: &mut StepOutput,
    ) -> Outcome {
        if let Some(ticket) = in_flight.pop_front() {
            self.engine.wait_into(ticket, None, output)?;
        }
        Ok(())
    }
}

/// Times of `repeat` runs after one that is not counted, the shortest first, and their processor time in seconds.
fn measure(
    repeat: u32,
    mut work: impl FnMut() -> Outcome<Duration>,
) -> Outcome<(Vec<Duration>, Vec<f64>)> {
    work()?;
    let (mut times, mut processor_seconds) = (Vec::new(), Vec::new());
    for _ in 0..repeat {
        let before = processor_time()?;
        times.push(work()?);
        processor_seconds.push(processor_time()? - before);
    }
    times.sort_unstable();
    Ok((times, processor_seconds))
}

/// Seconds that processors have worked for this process.
fn processor_time() -> Outcome<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)
        .map_err(|error| Failure::new(format!("processor time: {error}")))?;
    let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

fn print_table(rows: &[Measured], machine: &Machine, load_time: Duration) -> Outcome {
    let mut out = std::io::stdout().lock();
    write!(out, "{}", machine.label())?;
    if let Some(load) = load_average() {
        write!(out, ", load average {load}")?;
    }
    writeln!(out)?;
    writeln!(
        out,
        "{:<22} {:>14} {:>14} {:>10}",
        "", "best tok/s", "median tok/s", "GB/s"
    )?;
    for row in rows {
        let rate = row
            .rate()
            .map_or_else(|| "-".into(), |rate| format!("{:.1}", rate / 1e9));
        write!(
            out,
            "{:<22} {:>14.1} {:>14.1} {rate:>10}",
            row.work,
            row.best(),
            row.median()
        )?;
        if let Some(share) = row.share(machine) {
            write!(out, "  {share:.0} % of the memory bandwidth")?;
        }
        writeln!(out)?;
    }
    writeln!(
        out,
        "load {:.2} s, peak memory {} of {}",
        load_time.as_secs_f64(),
        size::short(machine.peak_bytes),
        size::short(machine.total_bytes)
    )?;
    Ok(())
}

/// Load average of this machine over one minute.
fn load_average() -> Option<f64> {
    let load = std::fs::read_to_string("/proc/loadavg").ok()?;
    load.split_whitespace().next()?.parse().ok()
}

fn to_json(rows: &[Measured], machine: &Machine, load_time: Duration) -> Value {
    let row = |row: &Measured| {
        json!({
            "work": row.work,
            "tokens": row.tokens,
            "best_tokens_per_second": row.best(),
            "median_tokens_per_second": row.median(),
            "processor_seconds": row.processor_seconds,
            "seconds": row.times.iter().map(Duration::as_secs_f64).collect::<Vec<_>>(),
            "gigabytes_per_second": row.rate().map(|rate| rate / 1e9),
            "bandwidth_percent": row.share(machine),
        })
    };
    json!({
        "device": machine.name,
        "backend": machine.backend.to_string(),
        "threads": machine.threads,
        "load_average": load_average(),
        "load_seconds": load_time.as_secs_f64(),
        "peak_bytes": machine.peak_bytes,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}
