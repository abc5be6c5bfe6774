//! What serving costs and keeps to, measured as a client does, with `worker-orcd serve` and `worker-orcd bench` as
//! processes of their own.
//!
//!   serve --model FILE [--worker FILE] [NAME=NUMBER…] [PART…]
//!
//! Parts: `http` (tokens a second through HTTP and of the engine alone, in turns), `mixed` (streams while long prompts
//! arrive, with a target for the time between tokens and without), `prefix` (time to the first token with and without a
//! cached prefix), `events` (processor time and memory without an engine; needs no model), `many` (very many streams).
//! `./dev bench` runs it.

use std::collections::BTreeMap;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use worker_cuda::Token;

use client::{Outcome, Server, Stream};

mod client;
mod events;
mod many;

/// What can be set, with the values for a large GPU.
const NUMBERS: [(&str, u32); 16] = [
    ("streams", 64),
    ("tokens", 384),         // of each stream
    ("depth", 128),          // tokens of its prompt
    ("turns", 3),            // of `http`
    ("repeat", 2),           // measurements of a turn, of which the median counts
    ("http-percent-10", 10), // most that HTTP may cost, in tenths of a percent
    ("long", 4096),          // tokens of a long prompt
    ("itl-target", 20),      // ms
    ("mixed-tokens", 250),   // of each stream while prompts arrive, with a target
    ("prefixes", 12),        // requests with and without a cached prefix
    ("batch", 2048),         // tokens of a step
    ("kv-tokens", 400_000),
    ("many-streams", 1000),
    ("many-depth", 4),
    ("many-tokens", 4),
    ("many-seconds", 120),
];

struct Bench {
    worker: String,
    model: String,
    numbers: BTreeMap<&'static str, u32>,
    /// Makes prompts differ.
    prompts: AtomicU32,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome<()> {
    let mut bench = Bench {
        worker: env!("CARGO_BIN_EXE_worker-orcd").into(),
        model: String::new(),
        numbers: NUMBERS.into_iter().collect(),
        prompts: AtomicU32::new(0),
    };
    let mut parts = Vec::new();
    let list: Vec<String> = std::env::args().skip(1).collect();
    match &list[..] {
        [first, rest @ ..] if first == "--clients" => return events::clients(rest),
        [first, rest @ ..] if first == "--readers" => return events::readers(rest),
        _ => {}
    }
    let mut arguments = list.into_iter();
    while let Some(argument) = arguments.next() {
        match &*argument {
            "--model" => bench.model = arguments.next().ok_or("--model FILE")?,
            "--worker" => bench.worker = arguments.next().ok_or("--worker FILE")?,
            "--bench" => {} // of Cargo
            part @ ("http" | "mixed" | "prefix" | "events" | "many") => parts.push(part.to_owned()),
            number => bench.set(number)?,
        }
    }
    for part in parts {
        let started = Instant::now();
        match &*part {
            "http" => bench.http()?,
            "mixed" => bench.mixed()?,
            "prefix" => bench.prefix()?,
            "events" => {
                events::measure(64, 500)?;
                events::measure(1000, 60)?;
            }
            _ => many::measure(&bench)?,
        }
        println!("({part}: {:.1} s)", started.elapsed().as_secs_f64());
    }
    Ok(())
}

impl Bench {
    fn set(&mut self, text: &str) -> Outcome<()> {
        let parts = text.split_once('=');
        let value = parts
            .and_then(|(name, value)| Some((self.numbers.get_mut(name)?, value.parse().ok()?)));
        let (place, value) = value.ok_or_else(|| format!("no part or number '{text}'"))?;
        *place = value;
        Ok(())
    }

    fn get(&self, name: &str) -> u32 {
        self.numbers[name]
    }

    fn server(&self, more: &[&str]) -> Outcome<Server> {
        let numbers = ["batch", "kv-tokens"].map(|name| self.get(name).to_string());
        let mut options = vec!["--batch", &numbers[0], "--kv-tokens", &numbers[1]];
        let streams = (self.get("streams") + 32).max(64).to_string();
        options.extend(["--max-sequences", &streams, "--context", "8192"]);
        options.extend(more);
        Server::start(&self.worker, &self.model, &options)
    }

    /// A prompt like no other.
    fn prompt(&self, length: u32) -> Vec<Token> {
        let number = self.prompts.fetch_add(1, Relaxed);
        let word = |i: u32| (number.wrapping_mul(7919).wrapping_add(i)).wrapping_mul(2_654_435_761);
        (0..length)
            .map(|i| 1000 + (word(i) >> 8) % 40_000)
            .collect()
    }

    /// Starts all streams at once; `meanwhile` runs when each has its first token, and learns when one has ended.
    fn streams<T: Send>(
        &self,
        server: &Server,
        tokens: u32,
        meanwhile: impl FnOnce(&AtomicBool) -> Outcome<T> + Send,
    ) -> Outcome<(Vec<Stream>, T)> {
        let (started, ended) = (AtomicU32::new(0), AtomicBool::new(false));
        let count = self.get("streams");
        thread::scope(|scope| {
            let threads: Vec<_> = (0..count)
                .map(|_| {
                    let prompt = self.prompt(self.get("depth"));
                    let (started, ended) = (&started, &ended);
                    scope.spawn(move || {
                        let stream = server.complete(&prompt, tokens, || {
                            started.fetch_add(1, Relaxed);
                        });
                        ended.store(true, Relaxed);
                        stream
                    })
                })
                .collect();
            while started.load(Relaxed) < count && !ended.load(Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
            let other = meanwhile(&ended);
            let streams = threads.into_iter().map(joined).collect::<Outcome<_>>()?;
            Ok((streams, other?))
        })
    }

    /// The engine's own rate, and its processor time in seconds: `worker-orcd bench` of as many sequences, prompts and
    /// tokens.
    fn engine_rate(&self) -> Outcome<(f64, f64)> {
        let report = self.worker_bench(&[
            ("--prompt-tokens", 16),
            ("--streams", self.get("streams")),
            ("--depth", self.get("depth")),
            ("--tokens", self.get("tokens")),
        ])?;
        let seconds = report["rows"][1]["processor_seconds"].as_array();
        let seconds = seconds.into_iter().flatten().filter_map(Value::as_f64);
        Ok((rate_of(&report, 1)?, median(seconds.collect())))
    }

    fn worker_bench(&self, options: &[(&str, u32)]) -> Outcome<Value> {
        let mut command = Command::new(&self.worker);
        command.args([
            "bench",
            "--json",
            "--temperature",
            "1",
            "--model",
            &self.model,
        ]);
        let more = [
            ("--batch", self.get("batch")),
            ("--repeat", self.get("repeat")),
        ];
        for (option, number) in options.iter().chain(&more) {
            command.args([*option, &number.to_string()]);
        }
        let output = command
            .output()
            .map_err(|error| format!("bench: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        serde_json::from_slice(&output.stdout).map_err(|error| format!("bench: {error}"))
    }

    /// Share of the engine's tokens a second that HTTP costs.
    fn http(&self) -> Outcome<()> {
        let server = self.server(&[])?;
        let (streams, tokens) = (self.get("streams"), self.get("tokens"));
        self.streams(&server, tokens, |_| Ok(()))?; // warms up
        let (mut engine, mut served, mut wholes) = (Vec::new(), Vec::new(), Vec::new());
        let mut spent = [Vec::new(), Vec::new(), Vec::new()];
        let to_ms = 1e3 / f64::from(streams * tokens);
        for turn in 1..=self.get("turns") {
            let (rate, engine_s) = self.engine_rate()?;
            engine.push(rate);
            let (mut turns, mut all) = (Vec::new(), Vec::new());
            let (mut server_s, mut clients_s) = (Vec::new(), Vec::new());
            for _ in 0..self.get("repeat") {
                let process = server.process_id().to_string();
                let before = (processor_seconds(&process)?, processor_seconds("self")?);
                let begin = Instant::now();
                let (list, ()) = self.streams(&server, tokens, |_| Ok(()))?;
                server_s.push(processor_seconds(&process)? - before.0);
                clients_s.push(processor_seconds("self")? - before.1);
                let last = list.iter().map(Stream::last).max().ok_or("no streams")?;
                turns.push(steady_rate(&list));
                all.push(f64::from(streams * tokens) / (last - begin).as_secs_f64());
            }
            served.push(median(turns));
            wholes.push(median(all));
            let at = engine.len() - 1;
            println!(
                "turn {turn}: engine {:.1} tokens/s, through HTTP {:.1} while all streams run, {:.1} from the requests \
                 to the last token",
                engine[at], served[at], wholes[at]
            );
            let turn = [engine_s, median(server_s), median(clients_s)].map(|time| time * to_ms);
            println!("  processor time of a token: {}", processor_text(turn));
            spent
                .iter_mut()
                .zip(turn)
                .for_each(|(all, time)| all.push(time));
        }
        let cost = |engine: f64, served: f64| 100.0 * (1.0 - served / engine);
        let turns = engine.iter().zip(&served);
        let turns = median(
            turns
                .map(|(engine, served)| cost(*engine, *served))
                .collect(),
        );
        let (engine, served) = (median(engine), median(served));
        let cost = cost(engine, served);
        let target = f64::from(self.get("http-percent-10")) / 10.0;
        println!(
            "HTTP at {streams} streams of {tokens} tokens after {}: engine {engine:.1} tokens/s, served {served:.1}, cost \
             {cost:.2} % (median of the turns {turns:.2} %); target {target} %: {}",
            self.get("depth"),
            verdict(cost <= target)
        );
        let more = |parts: fn(&[f64]) -> f64| {
            let turns = (0..spent[0].len()).map(|at| spent.each_ref().map(|all| all[at]));
            median(
                turns
                    .map(|turn| 100.0 * (parts(&turn[1..]) / turn[0] - 1.0))
                    .collect(),
            )
        };
        println!(
            "processor time of a token compared with the engine alone, medians of the turns: server {:+.2} %, server and \
             clients {:+.2} %",
            more(|parts| parts[0]),
            more(|parts| parts.iter().sum())
        );
        Ok(())
    }

    /// Times between tokens, the rate of prompts and `/health` while long prompts arrive.
    fn mixed(&self) -> Outcome<()> {
        let target = self.get("itl-target");
        let server = self.server(&["--itl-target-ms", &target.to_string()])?;
        let with = self.arrivals(&server, self.get("mixed-tokens"))?;
        let limit = 1.2 * f64::from(target);
        println!(
            "{} streams, prompts of {} arriving, target {target} ms: {}; target p99 {limit} ms: {}",
            self.get("streams"),
            self.get("long"),
            with.text(),
            verdict(with.itl(0.99) <= limit)
        );
        println!("  /health: {}", with.health_text());
        drop(server);
        let server = self.server(&[])?;
        // Steps are full, and so longer.
        let without = self.arrivals(&server, self.get("mixed-tokens") / 3)?;
        drop(server);
        let engine = rate_of(
            &self.worker_bench(&[("--prompt-tokens", self.get("long"))])?,
            0,
        )?;
        let share = without.prompt_rate / engine;
        println!(
            "the same without a target: {}; the engine's prompts of {} alone {engine:.0} tokens/s, share {:.1} %; with the \
             streams' own tokens {:.1} %; target 90 %: {}",
            without.text(),
            self.get("long"),
            share * 100.0,
            (without.prompt_rate + without.token_rate) / engine * 100.0,
            verdict(share >= 0.9)
        );
        println!("  /health: {}", without.health_text());
        Ok(())
    }

    /// Streams that decode while four clients send long prompts, and a fifth asks for the health.
    fn arrivals(&self, server: &Server, tokens: u32) -> Outcome<Arrivals> {
        server.complete(&self.prompt(self.get("long")), 1, || {})?; // warms up
        let (streams, (begin, prompts, mut health)) = self.streams(server, tokens, |ended| {
            let begin = Instant::now();
            thread::scope(|scope| {
                let health = scope.spawn(|| health_times(server, ended));
                let clients: Vec<_> = (0..4)
                    .map(|_| scope.spawn(|| self.send_prompts(server, ended)))
                    .collect();
                let mut prompts = Vec::new();
                for client in clients {
                    prompts.extend(joined(client)?);
                }
                Ok((begin, prompts, joined(health)?))
            })
        })?;
        let end = streams.iter().map(Stream::last).min().ok_or("no streams")?;
        let mut itl = Vec::new();
        for stream in &streams {
            let pairs = stream.arrivals.windows(2);
            let pairs = pairs.filter(|pair| pair[0].0 > begin && pair[1].0 <= end);
            itl.extend(pairs.map(|pair| ms(pair[1].0 - pair[0].0)));
        }
        itl.sort_by(f64::total_cmp);
        health.sort_by(f64::total_cmp);
        let mut firsts: Vec<_> = prompts
            .iter()
            .map(Stream::first)
            .filter(|time| *time <= end)
            .collect();
        firsts.sort_unstable();
        let [first, .., last] = firsts[..] else {
            return Err("fewer than two prompts: more tokens a stream are needed".into());
        };
        let seconds = (last - first).as_secs_f64();
        let count = |stream: &Stream| -> u32 {
            let inside = stream
                .arrivals
                .iter()
                .filter(|(time, _)| *time > first && *time <= last);
            inside.map(|(_, count)| count).sum()
        };
        Ok(Arrivals {
            itl,
            health,
            prompts: firsts.len(),
            prompt_rate: (firsts.len() - 1) as f64 * f64::from(self.get("long")) / seconds,
            token_rate: f64::from(streams.iter().map(count).sum::<u32>()) / seconds,
        })
    }

    fn send_prompts(&self, server: &Server, ended: &AtomicBool) -> Outcome<Vec<Stream>> {
        let mut prompts = Vec::new();
        while !ended.load(Relaxed) {
            prompts.push(server.complete(&self.prompt(self.get("long")), 1, || {})?);
        }
        Ok(prompts)
    }

    /// Time to the first token of prompts with a common prefix, computed or cached.
    fn prefix(&self) -> Outcome<()> {
        let server = self.server(&[])?;
        let idle = self.first_tokens(&server)?;
        let (_, loaded) = self.streams(&server, self.get("mixed-tokens") * 5, |ended| {
            let times = self.first_tokens(&server)?;
            match ended.load(Relaxed) {
                true => Err("the streams ended too early: more mixed-tokens are needed".into()),
                false => Ok(times),
            }
        })?;
        for (state, (computed, cached)) in [("idle", idle), ("streams decode", loaded)] {
            println!(
                "prefix of {}, {state}: first token p50 {computed:.2} ms computed, {cached:.2} ms cached, ratio {:.1}; target \
                 5: {}",
                self.get("long"),
                computed / cached,
                verdict(computed >= 5.0 * cached)
            );
        }
        Ok(())
    }

    /// Medians in ms, of computed prefixes and of a cached one, in turns.
    fn first_tokens(&self, server: &Server) -> Outcome<(f64, f64)> {
        let shared = self.prompt(self.get("long"));
        let mut times = [Vec::new(), Vec::new()];
        let mut measure = |kind: usize, prefix: &[Token]| -> Outcome<()> {
            let prompt = [prefix, &self.prompt(64)].concat();
            let stream = server.complete(&prompt, 1, || {})?;
            times[kind].push(ms(stream.first() - stream.begin));
            Ok(())
        };
        measure(0, &shared)?;
        for _ in 0..self.get("prefixes") {
            measure(0, &self.prompt(self.get("long")))?;
            measure(1, &shared)?;
        }
        let [computed, cached] = times;
        Ok((median(computed), median(cached)))
    }
}

/// What was measured while prompts arrived; times in ms, sorted.
struct Arrivals {
    itl: Vec<f64>,
    health: Vec<f64>,
    prompts: usize,
    /// Tokens a second of the prompts, and of the streams meanwhile.
    prompt_rate: f64,
    token_rate: f64,
}

impl Arrivals {
    fn itl(&self, quantile: f64) -> f64 {
        percentile(&self.itl, quantile)
    }

    fn text(&self) -> String {
        format!(
            "{} prompts, {:.0} of their tokens/s, {:.0} tokens/s of the streams, between tokens p50 {:.2}, p90 {:.2}, p99 \
             {:.2}, max {:.2} ms of {}",
            self.prompts,
            self.prompt_rate,
            self.token_rate,
            self.itl(0.5),
            self.itl(0.9),
            self.itl(0.99),
            self.itl(1.0),
            self.itl.len()
        )
    }

    fn health_text(&self) -> String {
        let p99 = percentile(&self.health, 0.99);
        format!(
            "p50 {:.2}, p99 {p99:.2}, max {:.2} ms of {}; target p99 10 ms: {}",
            percentile(&self.health, 0.5),
            percentile(&self.health, 1.0),
            self.health.len(),
            verdict(p99 < 10.0)
        )
    }
}

/// Times of `/health`, each with a connection of its own, in ms.
fn health_times(server: &Server, ended: &AtomicBool) -> Outcome<Vec<f64>> {
    let mut times = Vec::new();
    while !ended.load(Relaxed) {
        let begin = Instant::now();
        server.get("/health")?;
        times.push(ms(begin.elapsed()));
        thread::sleep(Duration::from_millis(5));
    }
    Ok(times)
}

/// Tokens a second from the last stream's first token to the first stream's last one.
fn steady_rate(streams: &[Stream]) -> f64 {
    let first = streams.iter().map(Stream::first).max();
    let last = streams.iter().map(Stream::last).min();
    let (Some(first), Some(last)) = (first, last) else {
        return 0.0;
    };
    let all = streams.iter().flat_map(|stream| &stream.arrivals);
    let inside = all.filter(|(time, _)| *time > first && *time <= last);
    let tokens: u32 = inside.map(|(_, count)| count).sum();
    f64::from(tokens) / last.saturating_duration_since(first).as_secs_f64()
}

fn processor_text([engine, server, clients]: [f64; 3]) -> String {
    format!("engine alone {engine:.3} ms, server {server:.3} ms, clients {clients:.3} ms")
}

/// Seconds that processors have worked for a process, in hundredths.
fn processor_seconds(process: &str) -> Outcome<f64> {
    let path = format!("/proc/{process}/stat");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    // The fields behind the name, which may have spaces.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: Option<Vec<f64>> = ticks.map(|ticks| ticks.parse().ok()).collect();
    Ok(ticks.ok_or(path)?.iter().sum::<f64>() / 100.0)
}

/// Median tokens a second of a row of `worker-orcd bench --json`.
fn rate_of(report: &Value, row: usize) -> Outcome<f64> {
    let rate = report["rows"][row]["median_tokens_per_second"].as_f64();
    rate.ok_or_else(|| format!("no rate in {report}"))
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, Outcome<T>>) -> Outcome<T> {
    thread.join().map_err(|_| "a thread panicked".to_owned())?
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Of sorted values.
fn percentile(values: &[f64], quantile: f64) -> f64 {
    let at = (values.len() as f64 * quantile) as usize;
    values
        .get(at.min(values.len().saturating_sub(1)))
        .copied()
        .unwrap_or(0.0)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    percentile(&values, 0.5)
}

fn verdict(is_met: bool) -> &'static str {
    if is_met { "met" } else { "missed" }
}
