//! Two implementations of ZCTL/1 and ZCL1: this library, and `tools/zctl_client.py`, which shares no code with it.
//!
//! Both get the same mutated frames and must give the same answers, byte for byte, and close at the same
//! places. Without `python3` there is nothing to compare with, and the tests say so.
#![cfg(feature = "zctl")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use worker_cuda::zctl::{Arg, Client, Server, ServerOptions, Session, SessionOptions};
use worker_cuda::{CudaContext, ElementType, GpuCompute};

const MEMORY_BYTES: usize = 16 << 20;
const FRAMES: usize = 100_000;
const CLOSINGS: usize = 300;

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/zctl_client.py")
}

fn kernels() -> Arc<GpuCompute> {
    let compute = GpuCompute::with_context(&CudaContext::host().unwrap()).unwrap();
    for name in ["noop", "tensor_add", "vector_add"] {
        compute.register_builtin(name, ElementType::F32, 0).unwrap();
    }
    Arc::new(compute)
}

/// The other server, on a socket; ends with the end of its input.
struct Other {
    child: Child,
    path: PathBuf,
}

impl Other {
    fn start(name: &str) -> Option<Self> {
        if !script().exists() {
            println!("skipped: a packaged crate has no tools/zctl_client.py");
            return None;
        }
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_file(&path);
        let started = Command::new("python3")
            .arg(script())
            .arg("--listen")
            .arg(format!("unix:{}", path.display()))
            .arg("serve")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = started else {
            println!("skipped: there is no python3");
            return None;
        };
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(line.starts_with("listening on "), "{line}");
        Some(Self { child, path })
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.path).unwrap();
        // Not a bound on how fast it answers: an answer that is too short would otherwise block for ever.
        stream
            .set_read_timeout(Some(Duration::from_secs(300)))
            .unwrap();
        stream
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
    fn below(&mut self, bound: u64) -> u32 {
        (self.next() % bound) as u32
    }
    fn pick(&mut self, from: &[u32]) -> u32 {
        from[self.below(from.len() as u64) as usize]
    }
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn frame(op: u16, req_id: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = b"ZCTL\x01\x00".to_vec();
    frame.extend(op.to_le_bytes());
    frame.extend(words(&[0, req_id, payload.len() as u32, 0, 0, 0]));
    frame.extend(payload);
    frame
}

fn with_offset(offset: u64, rest: &[u8]) -> Vec<u8> {
    [&offset.to_le_bytes()[..], rest].concat()
}

/// Frames that make sense, near the limits of what is valid. Descriptors lie at 0, 256 and 512, shapes and
/// strides behind them, data from 1,024 on.
fn sensible(random: &mut Random, req_id: u32) -> Vec<u8> {
    let end = MEMORY_BYTES as u32;
    let offset = |random: &mut Random| {
        let near = random.below(64);
        random.pick(&[
            1024 + near,
            2048 + near,
            3072 + near,
            512 + near,
            end - near,
            end,
            0,
        ])
    };
    match random.below(12) {
        0 => frame(0x0001, req_id, &vec![0; random.pick(&[0, 0, 3]) as usize]),
        1 => {
            let filter = words(&[random.below(6)]);
            let bytes = random.pick(&[0, 4, 4, 3]) as usize;
            frame(0x0101, req_id, &filter[..bytes])
        }
        2 => frame(0x8003, req_id, &[]),
        3 => frame(0x8021, req_id, &words(&[random.below(5)])),
        4 => {
            let length = random.below(40);
            let at = u64::from(offset(random));
            frame(0x8002, req_id, &with_offset(at, &words(&[length, 0])))
        }
        5 => {
            // No NaN: which of two a sum returns depends on the processor.
            let byte = |random: &mut Random| random.next() as u8 & 0xbf;
            let bytes: Vec<u8> = (0..random.below(40)).map(|_| byte(random)).collect();
            let at = u64::from(1024 + random.below(3000));
            frame(0x8001, req_id, &with_offset(at, &bytes))
        }
        6 => descriptor(random, req_id),
        7 => {
            let op = random.pick(&[0x8011, 0x8012, 0x8013]) as u16;
            frame(op, req_id, &words(&[4, 8])[..random.pick(&[4, 8]) as usize])
        }
        _ => run(random, req_id),
    }
}

/// Writes a descriptor with shape and strides.
fn descriptor(random: &mut Random, req_id: u32) -> Vec<u8> {
    let at = 256 * random.below(3);
    let rank = random.pick(&[1, 1, 2, 2, 3, 0, 8, 9]);
    let dims: Vec<u32> = (0..rank)
        .map(|_| random.pick(&[1, 2, 2, 3, 4, 0]))
        .collect();
    let strides: Vec<u32> = (0..rank)
        .map(|_| random.pick(&[1, 1, 2, 3, 4, 8, 0, 0x8000_0000]))
        .collect();
    let near = random.below(64);
    let data = random.pick(&[1024, 2048, 3072, 1024, at, MEMORY_BYTES as u32 - 64]) + near;
    let data_len = random.pick(&[16, 24, 64, 64, 128, 1 << 20, 0]);
    let stride_off = random.pick(&[0, 0, at + 96]);
    let flags = random.pick(&[0, 0, 3, 1, 2, 4]);
    let dtype = random.pick(&[1, 1, 1, 1, 1, 1, 2, 13]);
    let reserved = random.pick(&[0, 0, 0, 0, 0, 0, 0, 1]);
    let fields = [
        dtype,
        rank,
        flags,
        data,
        data_len,
        at + 32,
        stride_off,
        reserved,
    ];
    let mut bytes = words(&fields);
    bytes.extend(words(&dims));
    bytes.resize(96, 0);
    bytes.extend(words(&strides));
    frame(0x8001, req_id, &with_offset(u64::from(at), &bytes))
}

fn run(random: &mut Random, req_id: u32) -> Vec<u8> {
    let kernel = random.pick(&[1, 2, 2, 3, 3, 3, 3, 4]);
    let count = random.pick(&[4, 4, 4, 4, 4, 4, 4, 0, 1, 65]);
    let base = random.pick(&[0, 0, 0, 0, 64, MEMORY_BYTES as u32]);
    let n = random.pick(&[1, 2, 4, 4, 6, 0]);
    let mut payload = words(&[
        kernel,
        count,
        base,
        random.pick(&[0, 0, 0, 0, 0, 0, 0, 0, 1]),
    ]);
    let is_sizes = random.below(5) == 0;
    let is_plain = random.below(3) == 0;
    for i in 0..count {
        let near = random.below(32);
        let argument = if is_sizes {
            let elements = random.pick(&[n, n, n, n + 1, 0, u32::MAX]);
            [random.pick(&[2, 2, 2, 2, 2, 1]), elements, 0, 0]
        } else if is_plain {
            let offset = 1024 * (i % 4 + 1) + near;
            [[10, offset, 4 * n, 0], [3, n, 0, 0]][usize::from(i % 4 == 3)]
        } else if i % 4 == 3 {
            let kind = random.pick(&[1, 2, 3, 4, 3, 2, 5, 10]);
            [kind, n, random.pick(&[0, 0, 0, 0, 0, 1, 0x8000_0000]), 0]
        } else {
            let offset = 1024 * (i % 4 + 1) + near;
            match random.below(8) {
                0..=3 => [11, 256 * random.below(3), 32, 0],
                4..=6 => [10, offset, 4 * n + random.pick(&[0, 0, 0, 0, 4, 1]), 0],
                _ => [random.below(14), offset, 16, random.below(2)],
            }
        };
        payload.extend(words(&argument));
    }
    frame(0x0102, req_id, &payload)
}

fn text(value: &str) -> Vec<u8> {
    [&words(&[value.len() as u32])[..], value.as_bytes()].concat()
}

/// A frame of ZCL1, or one that uses a handle: the last are those of `buffers`. No QUERY of this backend, whose
/// answer names the device.
fn capability(random: &mut Random, req_id: u32, buffers: &[u32]) -> Vec<u8> {
    let last = *buffers.last().unwrap();
    let handle = |random: &mut Random| match random.below(8) {
        0 => last + random.below(8),
        _ => random.pick(&buffers[buffers.len().saturating_sub(8)..]),
    };
    let number = random.below(4);
    let backend = [
        "host", "host", "host", "host", "host", "host", "host", "cuda",
    ];
    let ordinal = ["0", "0", "0", "0", "0", "0", "0", "1"];
    let mut params = text(backend[random.below(8) as usize]);
    params.extend(text(ordinal[random.below(8) as usize]));
    let (kind, mode) = match random.below(17) {
        0 => return capability_frame(1, req_id, random.pick(&[0, 60_000]), &[]),
        1 => {
            let kind = ["accel", "accel.ext", "other"][random.below(3) as usize];
            let payload = [text(kind), text("default")].concat();
            return capability_frame(2, req_id, 0, &payload);
        }
        2 | 3 => {
            let read = words(&[handle(random), random.pick(&[0, 1, 4, 100, u32::MAX])]);
            return frame(0x8011, req_id, &read);
        }
        4 | 5 => {
            // No NaN.
            let bytes = (0..random.below(20)).map(|_| random.next() as u8 & 0xbf);
            let bytes: Vec<u8> = bytes.collect();
            return frame(0x8012, req_id, &[words(&[handle(random)]), bytes].concat());
        }
        6 => return frame(0x8013, req_id, &words(&[handle(random)])),
        7 => {
            params = text("cuda");
            ("accel", 1)
        }
        8..=10 => {
            let flags = random.pick(&[0, 0, 0, 0, 0, 0, 0, 0, 4, 1, 2, 3, 8]);
            params.extend(words(&[
                random.pick(&[0, 4, 16, 16, 16, 24, 64, 64]),
                0,
                flags,
            ]));
            ("accel", 2)
        }
        11..=13 => {
            params.extend(text(["wcuda", "wcuda", "wcuda", "other"][number as usize]));
            let kernels = ["vector_add", "vector_add", "tensor_add", "noop", "nothing"];
            params.extend(text(kernels[random.below(5) as usize]));
            params.extend(words(&[
                0,
                0,
                0,
                0,
                0,
                0,
                random.pick(&[0, 0, 0, 0, 0, 0, 1]),
            ]));
            let count = random.pick(&[4, 4, 4, 4, 4, 4, 4, 4, 4, 0, 1, 65]);
            params.extend(words(&[count]));
            for i in 0..count {
                if i % 4 == 3 {
                    params.extend(words(&[1, random.pick(&[8, 8, 8, 8, 8])]));
                    params.extend(words(&[random.pick(&[1, 2, 4, 0]), 0]));
                } else {
                    params.extend(words(&[2, 4, handle(random)]));
                }
            }
            params.extend(words(&[0]));
            ("accel", 3)
        }
        14 => {
            params.extend(text("default"));
            ("accel", 4)
        }
        15 => {
            let mode = 1 + random.below(5);
            let counts = [1, 1, 1, 2, 3];
            for _ in 0..counts[mode as usize - 1] {
                params.extend(words(&[random.below(4)]));
            }
            ("accel.ext", mode)
        }
        _ => {
            let mode = 6 + random.below(3);
            match mode {
                6 => params.extend(words(&[
                    handle(random),
                    handle(random),
                    number,
                    0,
                    number / 2,
                ])),
                7 => params.extend([text("code"), text("")].concat()),
                _ => params.extend(text("id")),
            }
            ("accel.ext", mode)
        }
    };
    let mut payload = [text(kind), text("default"), words(&[mode])].concat();
    payload.extend(words(&[params.len() as u32]));
    payload.extend(params);
    capability_frame(3, req_id, random.pick(&[0, 0, 60_000]), &payload)
}

fn capability_frame(op: u16, req_id: u32, timeout_ms: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = b"ZCL1\x01\x00".to_vec();
    frame.extend(op.to_le_bytes());
    frame.extend(words(&[req_id, timeout_ms, 0, payload.len() as u32]));
    frame.extend(payload);
    frame
}

/// The same with bytes changed or cut. Magic, version, timeout and length stay right.
fn mutated_capability(random: &mut Random, req_id: u32, buffers: &[u32]) -> Vec<u8> {
    let mut frame = capability(random, req_id, buffers);
    if frame[..4] != *b"ZCL1" {
        return frame;
    }
    for _ in 0..random.pick(&[0, 0, 0, 0, 0, 0, 1, 2]) {
        let at = loop {
            let at = 4 + random.below(frame.len() as u64 - 4) as usize;
            if !(12..16).contains(&at) && !(20..24).contains(&at) {
                break at;
            }
        };
        frame[at] = random.pick(&[0, 1, 0x7f, 0x80, 0xff, u32::from(frame[at] ^ 1)]) as u8;
    }
    if random.below(16) == 0 {
        let bytes = 24 + random.below(frame.len() as u64 - 23) as usize;
        frame.truncate(bytes);
        frame[20..24].copy_from_slice(&((bytes - 24) as u32).to_le_bytes());
    }
    frame
}

/// A frame with bytes changed, cut or added; its length stays that of its header, or its header is right.
fn mutated(random: &mut Random, req_id: u32) -> Vec<u8> {
    let mut frame = sensible(random, req_id);
    for _ in 0..random.pick(&[0, 0, 0, 0, 1, 1, 2, 5]) {
        // Neither magic nor version, which close, nor the length, which separates frames.
        let at = loop {
            let at = 6 + random.below(frame.len() as u64 - 6) as usize;
            if !(16..20).contains(&at) {
                break at;
            }
        };
        frame[at] = random.pick(&[0, 1, 0x7f, 0x80, 0xff, u32::from(frame[at] ^ 1)]) as u8;
    }
    if random.below(16) == 0 {
        let bytes = 32 + random.below(frame.len() as u64 - 31) as usize;
        frame.truncate(bytes);
        let length = (bytes - 32) as u32;
        frame[16..20].copy_from_slice(&length.to_le_bytes());
    }
    if random.below(8) == 0 {
        frame[24..28].fill(0);
        let sum = crc32(&frame);
        frame[24..28].copy_from_slice(&sum.to_le_bytes());
    }
    // A time limit that a run could exceed would make answers depend on the machine.
    if frame.len() >= 24 {
        frame[20..24].copy_from_slice(&[0; 4]);
    }
    frame
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg())
        })
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn mutated_frames_have_equal_answers() {
    let Some(other) = Other::start("zctl_frames.sock") else {
        return;
    };
    let compute = kernels();
    let mut session = Session::new(&compute, &SessionOptions::default()).unwrap();
    let mut memory = vec![0; MEMORY_BYTES];
    let mut response = Vec::new();
    let mut random = Random(14);
    let mut stream = other.connect();
    let (mut runs, mut submitted) = (0, 0);
    let mut buffers = vec![3u32];
    for batch in 0..FRAMES / 100 {
        let frames: Vec<Vec<u8>> = (0..100)
            .map(|i| match (i, random.below(3)) {
                // Of those given before, so that there is always room.
                (0..40, _) if batch % 2 == 1 => {
                    let last = buffers.last().unwrap();
                    frame(0x8013, 0, &words(&[last.saturating_sub(100 + i as u32)]))
                }
                (_, 0) => mutated_capability(&mut random, (batch * 100 + i) as u32, &buffers),
                _ => mutated(&mut random, (batch * 100 + i) as u32),
            })
            .collect();
        stream.write_all(&frames.concat()).unwrap();
        for (i, frame) in frames.iter().enumerate() {
            assert!(session.serve(&mut memory, frame, &mut response));
            let mut theirs = vec![0; response.len()];
            let got = stream.read_exact(&mut theirs);
            assert!(
                got.is_ok() && theirs == response,
                "frame {}: {}\nours   {}\ntheirs {} ({got:?})",
                batch * 100 + i,
                hex(frame),
                hex(&response),
                hex(&theirs),
            );
            let is_run = frame[6..8] == [2, 1] && response.len() == 44;
            runs += usize::from(is_run && response[32] == 1);
            if response.starts_with(b"ZCL1") && response.len() == 36 && response[20] == 1 {
                if response[28] == 7 {
                    buffers.push(u32::from_le_bytes(response[24..28].try_into().unwrap()));
                }
                submitted += usize::from(frame.windows(10).any(|name| name == b"vector_add"));
            }
        }
    }
    assert!(runs > FRAMES / 100, "only {runs} kernels ran");
    assert!(submitted > FRAMES / 2000, "only {submitted} submissions");
    let mut client = Client::new(stream);
    assert!(client.read_memory(0, 8192).unwrap() == memory[..8192]);
}

/// All that a server sends for these bytes, until it closes.
fn until_closed(mut stream: UnixStream, bytes: &[u8]) -> Vec<u8> {
    // The server may close before it has read everything.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answers = Vec::new();
    let _ = stream.read_to_end(&mut answers);
    answers
}

#[test]
fn broken_connections_close_at_equal_places() {
    let Some(other) = Other::start("zctl_closings.sock") else {
        return;
    };
    let options = ServerOptions {
        memory_bytes: MEMORY_BYTES,
        ..ServerOptions::default()
    };
    let server = Server::new(Some(kernels()), options).unwrap();
    let mut random = Random(15);
    for i in 0..CLOSINGS {
        let mut bytes = Vec::new();
        for id in 0..random.below(4) {
            bytes.extend(mutated(&mut random, id));
        }
        let mut last = mutated(&mut random, 9);
        match random.below(4) {
            0 => last[random.below(6) as usize] ^= 1 << random.below(8),
            1 => last.truncate(random.below(last.len() as u64) as usize),
            2 => last[16..20].copy_from_slice(&((1 << 20) + 1 + random.below(9)).to_le_bytes()),
            _ => {}
        }
        if random.below(4) == 0 {
            last = capability_frame(1, 9, 0, &[]);
            match random.below(3) {
                0 => last.truncate(random.below(24) as usize),
                1 => last[20..24].copy_from_slice(&((1 << 20) + 1 + random.below(9)).to_le_bytes()),
                _ => last[4] = 2,
            }
        }
        bytes.extend(last);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let answers = std::thread::scope(|scope| {
            scope.spawn(|| {
                server.serve(&mut theirs).unwrap();
                theirs.shutdown(std::net::Shutdown::Both)
            });
            until_closed(ours, &bytes)
        });
        let expected = until_closed(other.connect(), &bytes);
        assert_eq!(hex(&answers), hex(&expected), "{i}: {}", hex(&bytes));
    }
}

#[test]
fn our_client_speaks_to_the_other_server() {
    let Some(other) = Other::start("zctl_client.sock") else {
        return;
    };
    let mut client = Client::new(other.connect()).with_crc();
    assert_eq!(client.capabilities().unwrap().len(), 3);
    assert_eq!(client.kernels().unwrap()[2].name, "vector_add");
    assert_eq!(
        client.describe(3).unwrap().signature,
        "r f32[$3];r f32[$3];w f32[$3];i64;"
    );
    assert_eq!(client.memory_info().unwrap().memory_bytes, 16 << 20);
    client.write_memory(0, &1.25f32.to_le_bytes()).unwrap();
    let bytes = |offset| Arg::Bytes { offset, length: 4 };
    let args = [bytes(0), bytes(0), bytes(8), Arg::I32(1)];
    assert!(client.run(3, &args).unwrap().is_ok());
    assert_eq!(client.read_memory(8, 4).unwrap(), 2.5f32.to_le_bytes());
}

#[test]
fn the_other_client_speaks_to_both_servers() {
    let Some(other) = Other::start("zctl_both.sock") else {
        return;
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join("zctl_ours.sock");
    let _ = std::fs::remove_file(&path);
    let server = Server::new(Some(kernels()), ServerOptions::default()).unwrap();
    let listener = server.listen(&path).unwrap();
    let stop = listener.stop_handle();
    let serving = std::thread::spawn(move || listener.run().unwrap());
    let input = folder.join("zctl_ours.in");
    let output = folder.join("zctl_ours.out");
    std::fs::write(&input, 1.5f32.to_le_bytes()).unwrap();
    for path in [&path, &other.path] {
        let call = |words: &[&str]| {
            Command::new("python3")
                .arg(script())
                .arg("--crc")
                .arg(format!("unix:{}", path.display()))
                .args(words)
                .output()
                .unwrap()
        };
        let text = String::from_utf8(call(&["kernels"]).stdout).unwrap();
        assert!(text.contains("[2, \"tensor_add\", 161, 0]"), "{text}");
        let _ = std::fs::remove_file(&output);
        let from = format!("bytes:@{}", input.display());
        let to = format!("out:{}:4", output.display());
        let ran = call(&["run", "3", &from, &from, &to, "i64:1"]);
        assert!(ran.status.success(), "{ran:?}");
        assert_eq!(std::fs::read(&output).unwrap(), 3.0f32.to_le_bytes());
        let refused = call(&["run", "3", "i32:1"]);
        assert_eq!(refused.status.code(), Some(1));
    }
    stop.stop();
    serving.join().unwrap();
}
