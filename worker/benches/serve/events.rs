//! What an event and a stream cost without an engine: processor time of all that a server's process does for a token,
//! from the plan of its step to the bytes on the socket, and memory. Clients are another process.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use worker_cuda::generate::Service;
use worker_cuda::generate::service::{
    EngineLimits, Observer, Options, RowSource, ScriptedEngine, StepEngine, StepResults,
};
use worker_cuda::scheduler::Plan;
use worker_cuda::text::{Tokenizer, Vocabulary};
use worker_cuda::{LateRow, Result, Token};
use worker_orcd::serve::{self, Address, Metrics, ServedModel, Server};

use crate::client::{Client, Outcome};

/// Between two steps: time for each event to be one chunk.
const PERIOD: Duration = Duration::from_millis(20);
/// About the bytes of an event.
const SENT_BYTES: usize = 300;
const TARGET_US: f64 = 10.0;
const TARGET_KB: f64 = 64.0;

/// A scripted engine whose steps take as long as those of a real one.
struct Paced {
    engine: ScriptedEngine,
    next: Instant,
}

impl StepEngine for Paced {
    fn limits(&self) -> EngineLimits {
        self.engine.limits()
    }

    fn submit(&mut self, plan: &Plan, rows: &dyn RowSource) -> Result<()> {
        self.engine.submit(plan, rows)
    }

    fn sample(&mut self, rows: &[LateRow<'_>]) -> Result<()> {
        self.engine.sample(rows)
    }

    fn wait(&mut self, results: &mut StepResults) -> Result<()> {
        thread::sleep(self.next.saturating_duration_since(Instant::now()));
        self.next = Instant::now() + PERIOD;
        self.engine.wait(results)
    }
}

/// A server of so many streams, and the clients.
pub fn measure(streams: u32, tokens: u32) -> Outcome<()> {
    let vocabulary = Vocabulary {
        model: "gpt2".into(),
        tokens: (0..64u8).map(|i| char::from(b'!' + i).into()).collect(),
        ..Vocabulary::default()
    };
    let tokenizer = Tokenizer::from_vocabulary(vocabulary).map_err(|error| error.to_string())?;
    let mut limits = EngineLimits::new(streams * (tokens / 64 + 2), 64);
    limits.max_sequences = streams;
    limits.max_step_tokens = 2 * streams;
    limits.max_sequence_tokens = tokens + 64;
    let engine = ScriptedEngine::new(limits, |prompt, _| vec![prompt[0] % 64]);
    let next = Instant::now();
    let metrics = Arc::new(Metrics::default());
    let mut options = Options::default();
    options.observer = Some(Arc::clone(&metrics) as Arc<dyn Observer>);
    let service = Service::start(Paced { engine, next }, Some(Arc::new(tokenizer)), options);
    let service = service.map_err(|error| error.to_string())?;
    let address = Address::Tcp(([127, 0, 0, 1], 0).into());
    let model = ServedModel::new("scripted");
    let options = serve::Options::default();
    let server = Server::bind(&address, service, model, options, metrics);
    let server = server.map_err(|error| error.to_string())?;
    let url = server.url().map_err(|error| error.to_string())?;
    let stop = server.stop_handle();
    let server = thread::spawn(move || server.run());

    let system_before = system_seconds()?;
    let (before, memory_before) = (processor_times()?, crate::many::memory("self", "VmRSS")?);
    let clients = std::env::current_exe().map_err(|error| error.to_string())?;
    let count = [streams, tokens].map(|number| number.to_string());
    let status = Command::new(clients)
        .args([
            "--clients",
            url.trim_start_matches("http://"),
            &count[0],
            &count[1],
        ])
        .status();
    if !status.is_ok_and(|status| status.success()) {
        return Err("the clients have failed".into());
    }
    let events = f64::from(streams * tokens);
    let system = system_seconds()? - system_before;
    let mut sum = 0.0;
    let mut parts = Vec::new();
    for (name, after) in processor_times()? {
        let time = after.saturating_sub(before.get(&name).copied().unwrap_or(0));
        let us = time as f64 / 1e3 / events;
        sum += us;
        if us >= 0.01 {
            parts.push(format!("{name} {us:.2}"));
        }
    }
    let memory = crate::many::memory("self", "VmHWM")?.saturating_sub(memory_before);
    let kb = memory as f64 / 1024.0 / f64::from(streams);
    stop.stop();
    let ended = server.join().map_err(|_| "the server has panicked")?;
    ended.map_err(|error| error.to_string())?;
    println!(
        "processor time of an event, {streams} streams of {tokens} tokens, a step each {} ms: {sum:.2} us ({}); target \
         {TARGET_US} us: {}",
        PERIOD.as_millis(),
        parts.join(", "),
        crate::verdict(sum <= TARGET_US)
    );
    println!(
        "  of these the system {:.2} us; {SENT_BYTES} bytes written to as many sockets by a loop alone {:.2} us",
        system * 1e6 / events,
        bare_write(streams)? / 1e3
    );
    println!(
        "memory of a stream without the engine's: {kb:.1} KB; target {TARGET_KB} KB: {}",
        crate::verdict(kb <= TARGET_KB)
    );
    Ok(())
}

/// The other process: `--clients ADDRESS STREAMS TOKENS`.
pub fn clients(arguments: &[String]) -> Outcome<()> {
    let [address, streams, tokens] = arguments else {
        return Err("--clients ADDRESS STREAMS TOKENS".into());
    };
    let number = |text: &String| text.parse::<u32>().map_err(|error| error.to_string());
    let (streams, tokens) = (number(streams)?, number(tokens)?);
    let client = &Client::of(address)?;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..streams)
            .map(|number| {
                scope.spawn(move || client.complete(&[number as Token % 64; 8], tokens, || {}))
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| crate::joined(thread).map(drop))
    })
}

/// What the system needs for the writes: nanoseconds of one, with readers in another process.
fn bare_write(streams: u32) -> Outcome<f64> {
    const ROUNDS: u32 = 100;
    let failed = |error: io::Error| format!("the sockets: {error}");
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?.to_string();
    let mut readers = Command::new(std::env::current_exe().map_err(failed)?)
        .args(["--readers", &address, &streams.to_string()])
        .spawn()
        .map_err(failed)?;
    let mut sockets = Vec::new();
    for _ in 0..streams {
        let (socket, _) = listener.accept().map_err(failed)?;
        socket.set_nodelay(true).map_err(failed)?;
        sockets.push(socket);
    }
    let before = thread_ns()?;
    for _ in 0..ROUNDS {
        thread::sleep(PERIOD);
        for socket in &mut sockets {
            socket.write_all(&[b'x'; SENT_BYTES]).map_err(failed)?;
        }
    }
    thread::yield_now(); // Linux counts the time of this thread then
    let time = thread_ns()? - before;
    drop(sockets);
    readers.wait().map_err(failed)?;
    Ok(time as f64 / f64::from(streams * ROUNDS))
}

fn thread_ns() -> Outcome<u64> {
    let text =
        fs::read_to_string("/proc/thread-self/schedstat").map_err(|error| error.to_string())?;
    let ns = text.split(' ').next().and_then(|ns| ns.parse().ok());
    ns.ok_or_else(|| text.clone())
}

/// The other process: `--readers ADDRESS STREAMS`.
pub fn readers(arguments: &[String]) -> Outcome<()> {
    let [address, streams] = arguments else {
        return Err("--readers ADDRESS STREAMS".into());
    };
    let streams: u32 = streams.parse().map_err(|_| "no number".to_owned())?;
    thread::scope(|scope| {
        for _ in 0..streams {
            let mut socket = TcpStream::connect(address).map_err(|error| error.to_string())?;
            scope.spawn(move || io::copy(&mut socket, &mut io::sink()));
        }
        Ok(())
    })
}

/// Seconds that the system has worked for this process, in hundredths.
fn system_seconds() -> Outcome<f64> {
    let text = fs::read_to_string("/proc/self/stat").map_err(|error| error.to_string())?;
    // The fields behind the name, which may have spaces.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().nth(12);
    let ticks: Option<f64> = ticks.and_then(|ticks| ticks.parse().ok());
    ticks.map(|ticks| ticks / 100.0).ok_or_else(|| text.clone())
}

/// Nanoseconds of this process by the names of its threads.
fn processor_times() -> Outcome<BTreeMap<String, u64>> {
    let mut times = BTreeMap::new();
    let tasks = fs::read_dir("/proc/self/task").map_err(|error| error.to_string())?;
    for task in tasks.flatten() {
        let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let ns = read("schedstat");
        let ns: u64 = ns
            .split(' ')
            .next()
            .and_then(|ns| ns.parse().ok())
            .unwrap_or(0);
        *times.entry(read("comm").trim().to_owned()).or_default() += ns;
    }
    Ok(times)
}
