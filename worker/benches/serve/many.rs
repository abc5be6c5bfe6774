//! Very many streams for a long time: none is lost, and the server's memory does not grow.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Outcome, Server};
use crate::{Bench, joined};

/// Threads of clients only wait.
const STACK_BYTES: usize = 256 << 10;
/// Between two looks at the memory.
const LOOK: Duration = Duration::from_millis(250);
/// Growth after the first two rounds of streams that counts as none.
const FLAT: f64 = 1.01;

pub fn measure(bench: &Bench) -> Outcome<()> {
    let (count, tokens) = (bench.get("many-streams"), bench.get("many-tokens"));
    let depth = bench.get("many-depth");
    let duration = Duration::from_secs(bench.get("many-seconds").into());
    let pages = (count + 8) * (depth + tokens).div_ceil(64);
    let options = [
        ("--max-sequences", count),
        ("--batch", batch(count)),
        ("--kv-tokens", pages * 64),
        ("--context", (depth + tokens).next_multiple_of(64)),
    ]
    .map(|(name, value)| [name.to_owned(), value.to_string()])
    .concat();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let server = Server::start(&bench.worker, &bench.model, &options)?;
    let process = server.process_id().to_string();

    let (ended, events) = (AtomicU64::new(0), AtomicU64::new(0));
    let begin = Instant::now();
    let samples = thread::scope(|scope| {
        let client = || -> Outcome<()> {
            while begin.elapsed() < duration {
                let stream = server.complete(&bench.prompt(depth), tokens, || {})?;
                ended.fetch_add(1, Relaxed);
                events.fetch_add(stream.arrivals.len() as u64, Relaxed);
            }
            Ok(())
        };
        let mut threads = Vec::new();
        for _ in 0..count {
            let builder = thread::Builder::new().stack_size(STACK_BYTES);
            let thread = builder.spawn_scoped(scope, client);
            threads.push(thread.map_err(|error| error.to_string())?);
        }
        let mut samples = Vec::new();
        while threads.iter().any(|thread| !thread.is_finished()) {
            samples.push((ended.load(Relaxed), memory(&process, "VmRSS")?));
            thread::sleep(LOOK);
        }
        threads.into_iter().try_for_each(joined)?;
        Ok::<_, String>(samples)
    })?;
    let seconds = begin.elapsed().as_secs_f64();
    let ended = ended.load(Relaxed);
    println!(
        "{count} streams at once: {ended} streams of {tokens} tokens in {seconds:.0} s, {:.0} tokens/s, {} events, none lost",
        (ended * u64::from(tokens)) as f64 / seconds,
        events.load(Relaxed)
    );
    // Every page of the engine was used once then, and every buffer has grown.
    let of = |part: &mut dyn Iterator<Item = &(u64, u64)>| part.map(|(_, bytes)| *bytes).max();
    let warm = 2 * u64::from(count);
    let early = of(&mut samples.iter().filter(|(ended, _)| *ended <= warm));
    let late = of(&mut samples.iter().filter(|(ended, _)| *ended > warm));
    let (Some(early), Some(late)) = (early, late) else {
        return Err("fewer than three rounds: more many-seconds are needed".into());
    };
    println!(
        "memory: at most {} MB in the first two rounds, {} MB in the others: {}",
        early >> 20,
        late >> 20,
        if late as f64 <= early as f64 * FLAT {
            "flat"
        } else {
            "grows"
        }
    );
    Ok(())
}

/// Tokens of a step: all streams, and a quarter of it for prompts.
fn batch(streams: u32) -> u32 {
    (streams + streams / 3 + 64).next_multiple_of(64)
}

/// Bytes of a process: VmRSS now, VmHWM at most.
pub fn memory(process: &str, name: &str) -> Outcome<u64> {
    let path = format!("/proc/{process}/status");
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kb = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kb.map(|kb| kb << 10)
        .ok_or_else(|| format!("{path}: no {name}"))
}
