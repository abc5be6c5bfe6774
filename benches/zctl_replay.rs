//! Time to read a transcript of ZCTL/1 and replay it: 10,000 calls with frames of 4 KiB. `./dev bench` runs it.

use std::io;
use std::time::{Duration, Instant};

use worker_cuda::Backend;
use worker_cuda::zctl::{Call, Cloak, Host, Recorder, Replay, Transcript};

const CALLS: usize = 10_000;
const FRAME_BYTES: usize = 4096;
const RUNS: usize = 5;
const TARGET: Duration = Duration::from_secs(1);

/// CAPS_LIST, whose payload is not looked at.
fn guest(host: &mut dyn Host) {
    let mut memory = vec![0; 2 * FRAME_BYTES];
    memory[..8].copy_from_slice(b"ZCTL\x01\x00\x01\x00");
    memory[16..20].copy_from_slice(&(FRAME_BYTES as u32 - 32).to_le_bytes());
    let call = Call {
        req_len: FRAME_BYTES as i32,
        resp_ptr: FRAME_BYTES as i32,
        resp_cap: FRAME_BYTES as i32,
        ..Call::default()
    };
    for number in 0..CALLS as u32 {
        memory[12..16].copy_from_slice(&number.to_le_bytes());
        memory[32..FRAME_BYTES].fill(number as u8);
        assert_eq!(host.ctl(Some(3), &mut memory, call), 36);
        assert_eq!(memory[FRAME_BYTES + 12..][..4], number.to_le_bytes());
    }
}

fn main() {
    let mut text = Vec::new();
    let recorder = Recorder::new(&mut text, Backend::Host, b"");
    let mut cloak = Cloak::new(io::empty(), io::sink(), io::sink()).with_recorder(recorder);
    guest(&mut cloak);
    cloak.finish().expect("a transcript in memory");
    let text = String::from_utf8(text).expect("JSON");
    let mut times: Vec<Duration> = (0..=RUNS)
        .map(|_| {
            let begin = Instant::now();
            let transcript: Transcript = text.parse().expect("what was recorded");
            let mut replay = Replay::new(&transcript);
            guest(&mut replay);
            assert_eq!(replay.finish(), Ok(CALLS));
            begin.elapsed()
        })
        .skip(1)
        .collect();
    times.sort_unstable();
    let median = times[RUNS / 2];
    println!(
        "replay of {CALLS} calls of {FRAME_BYTES} bytes: median {:.3} s; target {} s: {}",
        median.as_secs_f64(),
        TARGET.as_secs(),
        if median <= TARGET { "met" } else { "missed" },
    );
}
