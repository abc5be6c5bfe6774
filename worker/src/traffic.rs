//! `load`: sends requests to a server, checks each stream, and measures the times between tokens.

use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::client::{self, Url};
use crate::failure::{Failure, Outcome, one_line};
use crate::input::print_json;

#[derive(clap::Args)]
pub struct Args {
    /// The server: http://HOST:PORT
    #[arg(long, value_name = "URL", value_parser = Url::parse)]
    url: Url,
    /// The model [default: the server's first]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// An API key
    #[arg(
        long,
        value_name = "KEY",
        env = "WORKER_API_KEY",
        hide_env_values = true
    )]
    api_key: Option<String>,
    /// Requests in all
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests: u32,
    /// Requests at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    concurrency: u32,
    /// Requests a second, however many then run at once
    #[arg(long, value_name = "R", conflicts_with = "concurrency", value_parser = positive)]
    rate: Option<f64>,
    /// The prompt; {} is the number of the request
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "Request {}: count from one to one hundred in words.\n"
    )]
    prompt: String,
    /// Tokens of each answer; ends of the model have no effect
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// Longest wait for bytes, in seconds
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    match (1e-3..=1e6).contains(&number) {
        true => Ok(number),
        false => Err("not from 0.001 to 1000000".to_owned()),
    }
}

/// Threads only wait; their stacks stay small.
const STACK_BYTES: usize = 256 << 10;
/// Wrong streams that are shown.
const MAX_SHOWN: usize = 10;

pub fn run(args: &Args) -> Outcome {
    let target = Target::new(args)?;
    let begin = Instant::now();
    let next = AtomicU32::new(0);
    let (sender, results) = mpsc::channel();
    let mut measured = Measured::new();
    thread::scope(|scope| -> Outcome {
        let target = &target;
        match args.rate {
            Some(rate) => {
                for number in 0..args.requests {
                    let due = begin + Duration::from_secs_f64(f64::from(number) / rate);
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    let sender = sender.clone();
                    spawn(scope, move || drop(sender.send(target.request(number))))?;
                }
            }
            None => {
                let next = &next;
                for _ in 0..args.concurrency.min(args.requests) {
                    let sender = sender.clone();
                    spawn(scope, move || {
                        loop {
                            let number = next.fetch_add(1, Relaxed);
                            if number >= args.requests {
                                break;
                            }
                            drop(sender.send(target.request(number)));
                        }
                    })?;
                }
            }
        }
        drop(sender);
        results.iter().for_each(|result| measured.add(result));
        Ok(())
    })?;
    measured.report(args, &target.model, begin.elapsed())
}

fn spawn<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    work: impl FnOnce() + Send + 'scope,
) -> Outcome {
    let builder = thread::Builder::new().stack_size(STACK_BYTES);
    let spawned = builder.spawn_scoped(scope, work);
    spawned
        .map(drop)
        .map_err(|error| Failure::new(format!("no thread: {error}")))
}

struct Target<'a> {
    args: &'a Args,
    model: String,
}

/// One stream, as it came.
#[derive(Default)]
struct Stream {
    text: String,
    tokens: Vec<u64>,
    prompt: Vec<u64>,
    /// When tokens came, and how many.
    arrivals: Vec<(Instant, u64)>,
    finish_reasons: Vec<String>,
    usage: Vec<u64>,
    is_done: bool,
}

/// What was measured of a stream: request to first token, times between tokens with their number, all of it.
struct Times {
    first_token: Duration,
    between: Vec<(Duration, u64)>,
    total: Duration,
    tokens: u64,
}

impl<'a> Target<'a> {
    fn new(args: &'a Args) -> Outcome<Self> {
        let mut target = Self {
            args,
            model: args.model.clone().unwrap_or_default(),
        };
        if args.model.is_none() {
            let models = target.call("GET", "/v1/models", "").map_err(Failure::new)?;
            let id = models["data"][0]["id"].as_str();
            target.model = id
                .ok_or_else(|| Failure::new("the server has no model"))?
                .to_owned();
        }
        Ok(target)
    }

    fn send(&self, method: &str, path: &str, body: &str) -> Result<client::Reply, String> {
        let timeout = Duration::from_secs(self.args.timeout);
        let key = self.args.api_key.as_deref();
        let reply = client::send(method, &self.args.url.join(path), key, body, timeout);
        let mut reply = reply.map_err(|error| format!("{path}: {error}"))?;
        match reply.status {
            200 => Ok(reply),
            status => {
                let text = reply.text().unwrap_or_default();
                Err(format!("{path}: status {status}: {text}"))
            }
        }
    }

    /// An answer that is one JSON value.
    fn call(&self, method: &str, path: &str, body: &str) -> Result<Value, String> {
        let text = self.send(method, path, body)?.text();
        let text = text.map_err(|error| format!("{path}: {error}"))?;
        serde_json::from_str(&text).map_err(|error| format!("{path}: {error}"))
    }

    /// Sends one request, and checks what comes.
    fn request(&self, number: u32) -> Result<Times, String> {
        let body = json!({
            "model": self.model,
            "prompt": self.args.prompt.replace("{}", &number.to_string()),
            "max_tokens": self.args.max_tokens,
            "ignore_eos": true,
            "return_token_ids": true,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        let begin = Instant::now();
        let reply = self.send("POST", "/v1/completions", &body.to_string())?;
        let stream = Stream::read(reply)?;
        let total = begin.elapsed();
        stream.check(self.args.max_tokens)?;
        let text = |tokens: &[u64]| -> Result<String, String> {
            let body = json!({ "tokens": tokens }).to_string();
            let answer = self.call("POST", "/detokenize", &body)?;
            Ok(answer["content"].as_str().unwrap_or_default().to_owned())
        };
        // A first token may be written in another way at the beginning of a text.
        let whole = text(&[&*stream.prompt, &*stream.tokens].concat())?;
        let expected = whole.strip_prefix(&text(&stream.prompt)?).unwrap_or(&whole);
        if stream.text != expected {
            let (text, expected) = (&stream.text, expected);
            return Err(format!(
                "the text is {text:?}, that of its tokens {expected:?}"
            ));
        }
        let mut between = Vec::new();
        for pair in stream.arrivals.windows(2) {
            let [(before, _), (time, count)] = pair else {
                continue;
            };
            between.push(((*time - *before) / (*count).max(1) as u32, *count));
        }
        Ok(Times {
            first_token: stream
                .arrivals
                .first()
                .map_or(total, |(time, _)| *time - begin),
            between,
            total,
            tokens: stream.tokens.len() as u64,
        })
    }
}

impl Stream {
    fn read(reply: client::Reply) -> Result<Self, String> {
        let mut stream = Self::default();
        for line in BufReader::new(reply).lines() {
            let line = line.map_err(|error| format!("the stream: {error}"))?;
            let time = Instant::now();
            let Some(data) = line.strip_prefix("data: ") else {
                continue;
            };
            if stream.is_done {
                return Err("the stream continues after [DONE]".to_owned());
            }
            if data == "[DONE]" {
                stream.is_done = true;
                continue;
            }
            let chunk: Value =
                serde_json::from_str(data).map_err(|error| format!("a chunk: {error}"))?;
            if !chunk["error"].is_null() {
                return Err(format!("an error in the stream: {}", chunk["error"]));
            }
            stream.add(&chunk, time);
        }
        Ok(stream)
    }

    fn add(&mut self, chunk: &Value, time: Instant) {
        let ids = |value: &Value| -> Vec<u64> {
            let list = value.as_array().into_iter().flatten();
            list.filter_map(Value::as_u64).collect()
        };
        if let Some(count) = chunk["usage"]["completion_tokens"].as_u64() {
            self.usage.push(count);
        }
        for choice in chunk["choices"].as_array().into_iter().flatten() {
            self.text += choice["text"].as_str().unwrap_or_default();
            self.prompt.extend(ids(&choice["prompt_token_ids"]));
            let tokens = ids(&choice["token_ids"]);
            if !tokens.is_empty() {
                self.arrivals.push((time, tokens.len() as u64));
            }
            self.tokens.extend(tokens);
            let reason = choice["finish_reason"].as_str();
            self.finish_reasons.extend(reason.map(str::to_owned));
        }
    }

    /// Whether it is whole: one end, one usage with the right count.
    fn check(&self, max_tokens: u32) -> Result<(), String> {
        let count = self.tokens.len() as u64;
        if !self.is_done {
            return Err(format!(
                "the stream ends after {count} tokens without [DONE]"
            ));
        }
        if self.usage != [count] {
            return Err(format!("{count} tokens, but usage has {:?}", self.usage));
        }
        if self.finish_reasons.len() != 1 {
            return Err(format!(
                "{} ends: {:?}",
                self.finish_reasons.len(),
                self.finish_reasons
            ));
        }
        if count > u64::from(max_tokens) {
            return Err(format!("{count} tokens, {max_tokens} were asked for"));
        }
        Ok(())
    }
}

/// All streams together. Histograms have microseconds, with three digits.
struct Measured {
    first_token: Histogram<u64>,
    between: Histogram<u64>,
    total: Histogram<u64>,
    streams: u64,
    tokens: u64,
    errors: Vec<String>,
}

impl Measured {
    fn new() -> Self {
        let histogram = || Histogram::new(3).expect("three digits are allowed");
        Self {
            first_token: histogram(),
            between: histogram(),
            total: histogram(),
            streams: 0,
            tokens: 0,
            errors: Vec::new(),
        }
    }

    fn add(&mut self, result: Result<Times, String>) {
        let times = match result {
            Ok(times) => times,
            Err(error) => return self.errors.push(error),
        };
        let microseconds = |time: Duration| time.as_micros() as u64;
        // They grow by themselves, so nothing is out of range.
        let _ = self.first_token.record(microseconds(times.first_token));
        let _ = self.total.record(microseconds(times.total));
        for (time, count) in times.between {
            let _ = self.between.record_n(microseconds(time), count);
        }
        self.streams += 1;
        self.tokens += times.tokens;
    }

    fn report(&self, args: &Args, model: &str, wall: Duration) -> Outcome {
        let seconds = wall.as_secs_f64();
        let rate = self.tokens as f64 / seconds;
        let rows = [
            ("ttft_ms", "to the first token", &self.first_token),
            ("itl_ms", "between tokens", &self.between),
            ("total_ms", "of a request", &self.total),
        ];
        let ms = |histogram: &Histogram<u64>, quantile: f64| {
            histogram.value_at_quantile(quantile) as f64 / 1e3
        };
        let percentiles = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)];
        if args.json {
            let mut report = json!({
                "model": model,
                "requests": args.requests,
                "streams": self.streams,
                "failed": self.errors.len(),
                "errors": self.errors.iter().take(MAX_SHOWN).collect::<Vec<_>>(),
                "wall_s": seconds,
                "tokens": self.tokens,
                "tokens_per_second": rate,
            });
            for (name, _, histogram) in rows {
                for (percentile, quantile) in percentiles {
                    report[name][percentile] = ms(histogram, quantile).into();
                }
            }
            print_json(&report)?;
        } else {
            println!(
                "{} streams of {model}, {} tokens in {seconds:.2} s: {rate:.1} tokens/s",
                self.streams, self.tokens
            );
            for (_, label, histogram) in rows {
                let list = percentiles.map(|(percentile, quantile)| {
                    format!("{percentile} {:.2}", ms(histogram, quantile))
                });
                println!("{label:<20} {} ms", list.join(", "));
            }
        }
        let Some(first) = self.errors.first() else {
            return Ok(());
        };
        for error in self.errors.iter().take(MAX_SHOWN).skip(1) {
            eprintln!("{}", one_line(error));
        }
        let (failed, all) = (self.errors.len(), args.requests);
        Err(Failure::new(format!(
            "{failed} of {all} requests failed: {first}"
        )))
    }
}
