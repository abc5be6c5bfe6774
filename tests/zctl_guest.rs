//! Guests of ZCTL/1: what the callbacks of a cloak answer, and transcripts that are recorded, changed and
//! replayed. PROPTEST_CASES sets the number of cases of each property.
#![cfg(feature = "zctl")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io;
use std::sync::{Arc, Mutex};

use processor_time::limited;
use proptest::prelude::*;
use worker_cuda::zctl::{
    Arena, Call, Chunks, Cloak, Divergence, Guest, GuestHeap, Handles, Host, Recorder, Replay,
    SessionOptions, Shape, Transcript, Trap,
};
use worker_cuda::{Backend, CudaContext, ElementType, GpuCompute};

#[path = "support/processor_time.rs"]
mod processor_time;

/// Notes the largest block of memory that a thread asks for.
struct Noting;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.set(LARGEST.get().max(layout.size()));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Noting = Noting;

/// Runs `work`, which may ask for no block of more than `most` bytes.
fn in_blocks_of<T>(most: usize, work: impl FnOnce() -> T) -> T {
    LARGEST.set(0);
    let result = work();
    let largest = LARGEST.get();
    assert!(largest <= most, "{largest} bytes, at most {most}");
    result
}

/// Reads a transcript, in blocks of memory that its bytes justify: a line of 24 bytes can be a call, which takes
/// 128 in a vector that doubles.
fn parse(text: &str) -> Result<Transcript, Divergence> {
    in_blocks_of(12 * text.len() + 1024, || text.parse())
}

/// noop 1, tensor_add 2, vector_add 3.
fn kernels() -> GpuCompute {
    let compute = GpuCompute::with_context(&CudaContext::host().unwrap()).unwrap();
    for name in ["noop", "tensor_add", "vector_add"] {
        compute.register_builtin(name, ElementType::F32, 0).unwrap();
    }
    compute
}

/// A stream whose bytes stay readable.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

impl io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn silent(input: &[u8]) -> Cloak<'_> {
    Cloak::new(input, io::sink(), io::sink())
}

const OUTSIDE: [(i32, i32); 11] = [
    (-1, 1),
    (0, -1),
    (i32::MIN, i32::MIN),
    (0, 65),
    (64, 1),
    (65, 0),
    (i32::MAX, 1),
    (1, i32::MAX),
    (i32::MAX, i32::MAX),
    (i32::MIN, i32::MAX),
    (-64, 128),
];

#[test]
fn windows_outside_the_memory_are_refused_and_move_nothing() {
    let (output, log) = (Shared::default(), Shared::default());
    let mut cloak = Cloak::new(&b"0123456789"[..], output.clone(), log.clone());
    let mut memory = vec![0; 64];
    for (ptr, bytes) in OUTSIDE {
        assert_eq!(cloak.read(0, &mut memory, ptr, bytes), -1, "{ptr}, {bytes}");
        assert_eq!(cloak.write(1, &memory, ptr, bytes), -1, "{ptr}, {bytes}");
        cloak.log(&memory, (ptr, bytes), (0, 1));
        cloak.log(&memory, (0, 1), (ptr, bytes));
        let mut call = Call {
            req_len: 32,
            resp_ptr: ptr,
            resp_cap: bytes,
            ..Call::default()
        };
        assert_eq!(cloak.ctl(None, &mut memory, call), -1);
        (call.req_ptr, call.req_len, call.resp_ptr, call.resp_cap) = (ptr, bytes, 0, 64);
        assert_eq!(cloak.ctl(None, &mut memory, call), -1);
    }
    assert_eq!(memory, [0; 64]);
    assert_eq!(cloak.read(0, &mut memory, 64, 0), 0);
    assert_eq!(cloak.read(0, &mut memory, 54, 10), 10);
    assert_eq!(memory[54..], *b"0123456789");
    cloak.finish().unwrap();
    assert!(output.bytes().is_empty() && log.bytes().is_empty());
}

#[test]
fn write_after_end_is_an_error_and_end_is_idempotent() {
    let (output, log) = (Shared::default(), Shared::default());
    let mut cloak = Cloak::new(&b"abc"[..], output.clone(), log.clone());
    let mut memory = vec![b'x'; 64];
    assert_eq!(cloak.write(1, &memory, 0, 1), 1);
    for _ in 0..2 {
        cloak.end(1);
        assert_eq!(cloak.write(1, &memory, 0, 1), -1);
        assert_eq!(cloak.write(1, &memory, 0, 0), -1);
    }
    assert_eq!(cloak.read(0, &mut memory, 1, 1), 1);
    cloak.end(0);
    assert_eq!(cloak.read(0, &mut memory, 1, 1), -1);
    assert_eq!(cloak.write(2, &memory, 0, 1), 1);
    cloak.end(2);
    assert_eq!(cloak.write(2, &memory, 0, 1), -1);
    for handle in [-1, 3, 4, i32::MIN, i32::MAX] {
        cloak.end(handle);
        assert_eq!(cloak.read(handle, &mut memory, 0, 1), -1);
        assert_eq!(cloak.write(handle, &memory, 0, 1), -1);
    }
    assert_eq!(
        (output.bytes(), log.bytes()),
        (b"x".to_vec(), b"x".to_vec())
    );
}

#[test]
fn a_stream_that_fails_is_answered_with_minus_1() {
    struct Broken;
    impl io::Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::ConnectionReset.into())
        }
    }
    impl io::Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut cloak = Cloak::new(Broken, Broken, Broken);
    let mut memory = [0; 8];
    assert_eq!(cloak.read(0, &mut memory, 0, 8), -1);
    assert_eq!(cloak.write(1, &memory, 0, 8), -1);
    cloak.log(&memory, (0, 1), (0, 1));

    let recorder = Recorder::new(Broken, Backend::Host, b"");
    let cloak = silent(b"").with_recorder(recorder);
    assert_eq!(
        cloak.finish().unwrap_err().kind(),
        io::ErrorKind::BrokenPipe
    );
}

#[test]
fn handles_have_the_numbers_of_their_document() {
    for (handles, input, ctl) in [
        (Handles::Pack, 1, 4),
        (Handles::Abi, 0, 3),
        (Handles::Guide, 0, 99),
    ] {
        let mut cloak = silent(b"abcdef").with_handles(handles);
        assert_eq!(cloak.stdio(), (input, input + 1));
        let mut memory = vec![0; 128];
        memory[..32].copy_from_slice(&frame(1, &[], false));
        let call = Call {
            req_len: 32,
            resp_ptr: 64,
            resp_cap: 64,
            ..Call::default()
        };
        for handle in -1..6 {
            let read = cloak.read(handle, &mut memory, 32, 1);
            assert_eq!(read, if handle == input { 1 } else { -1 });
            let written = cloak.write(handle, &memory, 0, 1);
            let is_output = [input + 1, input + 2].contains(&handle);
            assert_eq!(written, if is_output { 1 } else { -1 });
            let answered = cloak.ctl(Some(handle), &mut memory, call);
            assert_eq!(answered, if handle == ctl { 36 } else { -1 });
        }
        assert_eq!(cloak.ctl(None, &mut memory, call), 36);
    }
}

#[test]
fn caps_list_is_empty_without_a_session() {
    let mut cloak = silent(b"");
    let mut memory = vec![0; 128];
    for (op, status, bytes) in [(0x0001u16, 0, 36), (0x0101, 2, 32), (0x0102, 2, 32)] {
        memory[..32].copy_from_slice(&frame(op, &[], true));
        let call = Call {
            req_len: 32,
            resp_ptr: 64,
            resp_cap: 36,
            ..Call::default()
        };
        assert_eq!(cloak.ctl(None, &mut memory, call), bytes, "{op}");
        assert_eq!(memory[64 + 16], status);
        assert_eq!(memory[96..100], [0; 4]);
    }
}

#[test]
fn log_lines_have_no_control_characters() {
    let log = Shared::default();
    let mut cloak = Cloak::new(io::empty(), io::sink(), log.clone());
    cloak.log(b"a\tbtopic\x7f\n", (3, 5), (0, 3));
    cloak.log(b"a\tbtopic\x7f\n", (8, 2), (10, 0));
    assert_eq!(log.bytes(), b"topic: a b\n  : \n");
}

#[test]
fn chunk_schedules_give_the_sizes_of_the_table() {
    let sizes = |schedule: &str, input: &[u8], cap: i32| {
        let chunks: Chunks = schedule.parse().unwrap();
        let mut cloak = silent(input).with_chunks(chunks);
        let mut memory = vec![0; 1 << 14];
        let (mut sizes, mut all) = (Vec::new(), Vec::new());
        loop {
            let bytes = cloak.read(0, &mut memory, 0, cap);
            if bytes <= 0 {
                assert_eq!((bytes, &all[..]), (0, input));
                return sizes;
            }
            sizes.push(bytes);
            all.extend(&memory[..bytes as usize]);
        }
    };
    assert_eq!(sizes("all-at-once", b"0123456789", 64), [10]);
    assert_eq!(sizes("all-at-once", b"0123456789", 4), [4, 4, 2]);
    assert_eq!(sizes("one-byte", b"0123", 64), [1, 1, 1, 1]);
    assert_eq!(sizes("powers-of-two", &[0; 20], 64), [1, 2, 4, 8, 5]);
    let long = sizes("powers-of-two", &[0; 8194], 1 << 14);
    assert_eq!(long[12..], [4096, 1, 2]);
    let lines = b"ab\r\n\n0123456789\r";
    assert_eq!(sizes("crlf-adversary", lines, 64), [3, 1, 1, 7, 4]);
    assert_eq!(sizes("seeded-random", &[0; 120], 64), [48, 53, 16, 3]);
    assert_eq!(sizes("seeded-random:0", &[0; 120], 50), [48, 50, 16, 6]);
    for wrong in [
        "",
        "all",
        "one-byte:",
        "one-byte:x",
        ":1",
        "seeded-random:-1",
    ] {
        assert!(wrong.parse::<Chunks>().is_err(), "{wrong}");
    }
}

#[test]
fn an_arena_has_offsets_within_the_memory_only() {
    let mut arena = Arena::new(5);
    assert_eq!(arena.alloc(64, 1), Some(16));
    assert_eq!(arena.alloc(64, 0), Some(32));
    assert_eq!(arena.alloc(64, 16), Some(32));
    for size in [17, -1, i32::MIN, i32::MAX] {
        assert_eq!(arena.alloc(64, size), None, "{size}");
    }
    assert_eq!(arena.alloc(64, 16), Some(48));
    assert_eq!(arena.alloc(64, 0), Some(64));
    for base in [65, 0x7fff_fff1, u32::MAX] {
        assert_eq!(Arena::new(base).alloc(64, 0), None, "{base}");
    }
    for base in [0x7fff_fff1, u32::MAX] {
        assert_eq!(Arena::new(base).alloc(usize::MAX, 1), None, "{base}");
    }
}

/// A frame, with its checksum if `has_crc`.
fn frame(op: u16, payload: &[u8], has_crc: bool) -> Vec<u8> {
    let mut frame = b"ZCTL\x01\x00".to_vec();
    frame.extend(op.to_le_bytes());
    for field in [0, 7, payload.len() as u32, 0, 0, 0] {
        frame.extend(field.to_le_bytes());
    }
    frame.extend(payload);
    if has_crc {
        let crc = crc32fast::hash(&frame);
        frame[24..28].copy_from_slice(&crc.to_le_bytes());
    }
    frame
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

const MEMORY: usize = 1 << 14;
const RESPONSE: usize = 8192;

/// Sends a frame that it places at 4,096; the answer is at 8,192.
fn send(host: &mut dyn Host, memory: &mut [u8], frame: &[u8]) -> i32 {
    memory[4096..4096 + frame.len()].copy_from_slice(frame);
    let call = Call {
        req_ptr: 4096,
        req_len: frame.len() as i32,
        resp_ptr: RESPONSE as i32,
        resp_cap: 4096,
        timeout_ms: 0,
    };
    host.ctl(Some(3), memory, call)
}

/// A guest that echoes.
fn echo(host: &mut dyn Host) {
    let mut memory = vec![0; MEMORY];
    loop {
        let bytes = host.read(0, &mut memory, 16, 100);
        if bytes <= 0 {
            break;
        }
        if host.write(1, &memory, 16, bytes) != bytes {
            return;
        }
    }
    host.end(1);
}

/// A guest that adds the halves of 32 bytes as tensors with strides, lists the kernels, and is refused once.
fn add(host: &mut dyn Host) {
    let mut memory = vec![0; MEMORY];
    if host.read(0, &mut memory, 0, 16) != 16 || host.read(0, &mut memory, 16, 16) != 16 {
        return;
    }
    if send(host, &mut memory, &frame(0x0101, &[], true)) < 0 {
        return;
    }
    // Descriptors at 1,024, 1,056, 1,088: a of stride 1, b backwards in no way, c of stride 2.
    memory[1000..1004].copy_from_slice(&words(&[4]));
    memory[1004..1008].copy_from_slice(&words(&[2]));
    for (index, (data, bytes, strides)) in [(0, 16, 0), (16, 16, 0), (2048, 28, 1004)]
        .into_iter()
        .enumerate()
    {
        let descriptor = words(&[1, 1, 0, data, bytes, 1000, strides, 0]);
        let at = 1024 + 32 * index;
        memory[at..at + 32].copy_from_slice(&descriptor);
    }
    let tensor = |at| [11, at, 32, 0];
    let integer = [1, 4, 0, 0];
    let run = |kernel: u32, args: &[[u32; 4]]| {
        let mut payload = words(&[kernel, args.len() as u32, 0, 0]);
        payload.extend(args.iter().flat_map(|arg| words(arg)));
        frame(0x0102, &payload, true)
    };
    let args = [tensor(1024), tensor(1056), tensor(1088), integer];
    if send(host, &mut memory, &run(2, &args)) != 44 {
        return;
    }
    if host.write(1, &memory, 2048, 28) != 28 {
        return;
    }
    // Refused: one argument too few.
    if send(host, &mut memory, &run(2, &args[..3])) < 44 {
        return;
    }
    let failed = memory[RESPONSE..][..200].to_vec();
    memory[..200].copy_from_slice(&failed);
    host.write(1, &memory, 0, 80);
    host.write(9, &memory, 0, 80);
    // Bytes, the same input twice.
    let bytes = |at| [10, at, 16, 0];
    let args = [bytes(2048), bytes(2048), bytes(3000), integer];
    if send(host, &mut memory, &run(3, &args)) != 44 {
        return;
    }
    host.write(1, &memory, 3000, 16);
    host.read(0, &mut memory, 0, 1);
    host.end(0);
    host.end(1);
}

fn input_of_add() -> Vec<u8> {
    (0..8u8).flat_map(|i| f32::from(i).to_le_bytes()).collect()
}

/// The transcript of a guest, and its output.
fn record(guest: impl Fn(&mut dyn Host), input: &[u8]) -> (String, Vec<u8>) {
    let (text, output) = (Shared::default(), Shared::default());
    let recorder = Recorder::new(text.clone(), Backend::Host, b"");
    let session = recorder
        .session(&kernels(), &SessionOptions::default())
        .unwrap();
    let mut cloak = Cloak::new(input, output.clone(), io::sink())
        .with_session(session)
        .with_recorder(recorder);
    guest(&mut cloak);
    cloak.finish().unwrap();
    (String::from_utf8(text.bytes()).unwrap(), output.bytes())
}

fn replay(guest: impl Fn(&mut dyn Host), text: &str) -> Result<usize, Divergence> {
    let transcript = parse(text)?;
    let mut replay = Replay::new(&transcript);
    // No guest here has more memory; a replay takes none of its size.
    in_blocks_of(MEMORY, || guest(&mut replay));
    replay.finish()
}

#[test]
fn a_transcript_has_the_lines_of_the_document() {
    let (text, output) = record(add, &input_of_add());
    let lines: Vec<&str> = text.lines().collect();
    let nothing = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
    assert_eq!(
        lines[0],
        format!(
            r#"{{"k":"zctl","v":1,"manifest":"{nothing}","backend":"host","mem_cap":{MEMORY}}}"#
        )
    );
    assert_eq!(
        lines[1],
        r#"{"k":"read","i":0,"h":0,"ret":16,"b64":"AAAAAAAAgD8AAABAAABAQA=="}"#
    );
    // Shape, strides and descriptors, with a and b before them.
    let starts = [
        r#"{"k":"ctl_req","i":3,"b64":"WkNUTAEAAgE"#,
        r#"{"k":"mem_in","i":3,"off":0,"len":16,"crc":""#,
        r#"{"k":"mem_in","i":3,"off":16,"len":16,"crc":""#,
        r#"{"k":"mem_in","i":3,"off":1000,"len":4,"crc":""#,
        r#"{"k":"mem_in","i":3,"off":1004,"len":4,"crc":""#,
        r#"{"k":"mem_in","i":3,"off":1024,"len":32,"crc":""#,
        r#"{"k":"mem_in","i":3,"off":1056,"len":32,"crc":""#,
        r#"{"k":"mem_in","i":3,"off":1088,"len":32,"crc":""#,
        r#"{"k":"mem_out","i":3,"off":2048,"b64":""#,
        r#"{"k":"ctl_res","i":3,"ret":44,"b64":"WkNUTAEAAgE"#,
        r#"{"k":"write","i":4,"h":1,"ret":28,"b64":""#,
    ];
    for (line, start) in lines[5..].iter().zip(starts) {
        assert!(line.starts_with(start), "{line}");
    }
    assert!(text.ends_with("{\"k\":\"end\",\"i\":12,\"h\":1}\n"));
    assert!(text.contains(r#"{"k":"write","i":7,"h":9,"ret":-1,"b64":""}"#));
    let sums: Vec<f32> = output[..28]
        .chunks(8)
        .map(|sum| f32::from_le_bytes(sum[..4].try_into().unwrap()))
        .collect();
    assert_eq!(sums, [4.0, 6.0, 8.0, 10.0]);
}

#[test]
fn echo_is_deterministic_over_all_chunk_schedules() {
    let input = b"one\r\ntwo\n\rthree and a line without an end".repeat(99);
    for schedule in [
        "all-at-once",
        "one-byte",
        "powers-of-two",
        "crlf-adversary",
        "seeded-random:5",
    ] {
        let output = Shared::default();
        let mut cloak = Cloak::new(&input[..], output.clone(), io::sink())
            .with_chunks(schedule.parse().unwrap());
        echo(&mut cloak);
        cloak.finish().unwrap();
        assert_eq!(output.bytes(), input, "{schedule}");
    }
}

#[test]
fn replay_gives_the_same_bytes_in_the_whole_memory() {
    let input = input_of_add();
    let memories = Mutex::new(Vec::new());
    let guest = |host: &mut dyn Host| {
        let mut memory = vec![0; MEMORY];
        host.read(0, &mut memory, 0, 32);
        let bytes = |at| [10, at, 16, 0];
        let args = [bytes(0), bytes(16), bytes(3000), [1, 4, 0, 0]];
        let payload = [&[3, 4, 0, 0][..], &args.concat()].concat();
        send(host, &mut memory, &frame(0x0102, &words(&payload), false));
        memories.lock().unwrap().push(memory);
    };
    let (text, _) = record(guest, &input);
    assert_eq!(replay(guest, &text), Ok(2));
    let memories = memories.lock().unwrap();
    assert_eq!(
        memories[0][3000..3016],
        words(&[4.0f32, 6.0, 8.0, 10.0].map(f32::to_bits))
    );
    assert!(memories[0] == memories[1]);
}

/// A guest that opens a buffer, writes to it, reads it back and ends it, all by its handle.
fn use_buffer(host: &mut dyn Host) {
    let text = |text: &str| [&words(&[text.len() as u32])[..], text.as_bytes()].concat();
    let params = [text("host"), text("0"), words(&[16, 0, 0])].concat();
    let payload = [
        text("accel"),
        text("default"),
        words(&[2, params.len() as u32]),
        params,
    ]
    .concat();
    let mut open = b"ZCL1\x01\x00\x03\x00".to_vec();
    open.extend(words(&[5, 0, 0, payload.len() as u32]));
    open.extend(payload);
    let mut memory = vec![0; MEMORY];
    if send(host, &mut memory, &open) != 36 {
        return;
    }
    let handle = i32::from_le_bytes(memory[RESPONSE + 24..][..4].try_into().unwrap());
    memory[..16].copy_from_slice(b"sixteen bytes of");
    assert_eq!(host.write(handle, &memory, 0, 16), 16);
    assert_eq!(host.write(handle, &memory, 0, 1), -1);
    assert_eq!(host.write(handle, &memory, MEMORY as i32, 1), -1);
    assert_eq!(host.read(handle, &mut memory, 100, 10), 10);
    assert_eq!(host.read(handle, &mut memory, -1, 10), -1);
    assert_eq!(host.read(handle, &mut memory, 110, 10), 6);
    assert_eq!(host.read(handle, &mut memory, 110, 10), 0);
    host.end(handle);
    assert_eq!(host.read(handle, &mut memory, 0, 1), -1);
    host.write(1, &memory, 100, 16);
}

#[test]
fn handles_of_a_session_are_read_written_ended_and_replayed() {
    let (text, output) = record(use_buffer, b"");
    assert_eq!(output, b"sixteen bytes of");
    assert_eq!(replay(use_buffer, &text), Ok(11));
}

#[test]
fn a_recorded_guest_replays() {
    let (text, _) = record(add, &input_of_add());
    assert_eq!(replay(add, &text), Ok(13));
    let (text, output) = record(echo, b"hello\r\nworld");
    assert_eq!(output, b"hello\r\nworld");
    assert_eq!(replay(echo, &text), Ok(4));
    let (text, _) = record(|_| (), b"");
    assert!(text.ends_with("\"mem_cap\":0}\n"));
    assert_eq!(replay(|_| (), &text), Ok(0));
}

/// Each line left out, doubled, swapped with the next; `check` has what was done too.
fn rearranged(text: &str, mut check: impl FnMut(String, &str)) {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    for (index, line) in lines.iter().enumerate() {
        let mut left_out = lines.clone();
        left_out.remove(index);
        check(left_out.concat(), &format!("without {line}"));
        let mut doubled = lines.clone();
        doubled.insert(index, line);
        check(doubled.concat(), &format!("twice {line}"));
        if index + 1 < lines.len() {
            let mut swapped = lines.clone();
            swapped.swap(index, index + 1);
            check(swapped.concat(), &format!("swapped {line}"));
        }
    }
}

/// Each character of the values of `i`, `ret`, `crc` and `b64` changed.
fn changed(text: &str, mut check: impl FnMut(String, &str)) {
    let mut begin = 0;
    for line in text.split_inclusive('\n') {
        for key in ["\"i\":", "\"ret\":", "\"crc\":", "\"b64\":"] {
            let Some(at) = line.find(key) else { continue };
            let value = &line[at + key.len()..];
            let length = value.find(['\n', ',', '}']).unwrap();
            for index in at + key.len()..at + key.len() + length {
                for other in ["0", "A", "="] {
                    if &line[index..=index] == other {
                        continue;
                    }
                    let mut changed = text.to_owned();
                    changed.replace_range(begin + index..=begin + index, other);
                    check(changed, &format!("{key} {index} {other} of {line}"));
                }
            }
        }
        begin += line.len();
    }
}

#[test]
fn every_rearranged_transcript_diverges() {
    for (guest, input) in [
        (echo as fn(&mut dyn Host), &b"a\nbc"[..]),
        (add, &input_of_add()),
    ] {
        let (text, _) = record(guest, input);
        rearranged(&text, |text, what| {
            assert!(replay(guest, &text).is_err(), "{what}");
        });
    }
}

#[test]
fn every_changed_character_diverges() {
    for (guest, input) in [
        (echo as fn(&mut dyn Host), &b"a\nbc"[..]),
        (add, &input_of_add()),
    ] {
        let (text, _) = record(guest, input);
        changed(&text, |text, what| {
            assert!(replay(guest, &text).is_err(), "{what}");
        });
    }
}

#[test]
fn a_divergence_has_line_byte_and_both_values() {
    let (text, _) = record(echo, b"hello");
    let found = |guest: &dyn Fn(&mut dyn Host)| replay(guest, &text).unwrap_err().to_string();
    let after_read = |body: &dyn Fn(&mut dyn Host, &mut [u8])| {
        found(&|host| {
            let mut memory = vec![0; MEMORY];
            host.read(0, &mut memory, 16, 100);
            body(host, &mut memory);
            // After the first divergence everything fails.
            assert_eq!(host.write(1, &memory, 16, 5), -1);
        })
    };
    assert_eq!(
        after_read(&|host, memory| {
            memory[18] = 0;
            host.write(1, memory, 16, 5);
        }),
        "line 3, byte 2: expected 6c, found 00"
    );
    assert_eq!(
        after_read(&|host, memory| {
            host.write(1, memory, 16, 4);
        }),
        "line 3, byte 4: expected 6f, found the end"
    );
    assert_eq!(
        after_read(&|host, memory| {
            host.write(2, memory, 16, 5);
        }),
        "line 3, byte 0: expected handle 1, found handle 2"
    );
    assert_eq!(
        after_read(&|host, memory| {
            host.read(0, memory, 16, 5);
        }),
        "line 3, byte 0: expected write, found read"
    );
    assert_eq!(
        found(&|_| ()),
        "line 2, byte 0: expected read, found the end of the guest"
    );
    assert_eq!(
        found(&|host| {
            host.read(0, &mut [0; MEMORY], 16, 4);
        }),
        "line 2, byte 0: expected room for 5 bytes, found 4 bytes"
    );
    assert_eq!(
        found(&|host| {
            host.read(0, &mut [0; 64], 0, 64);
        }),
        "line 1, byte 0: expected 16384 bytes of memory, found 64 bytes of memory"
    );
    assert_eq!(
        found(&|host| {
            echo(host);
            host.end(1);
        }),
        "line 6, byte 0: expected the end of the guest, found end"
    );
    let (text, _) = record(add, &input_of_add());
    let other_input = text.replacen("AAAAAAAAgD8", "AAAAAAAAgD4", 1);
    let error = replay(add, &other_input).unwrap_err();
    assert_eq!((error.line, error.byte), (7, 0));
    assert!(error.expected.starts_with("crc "), "{error}");
}

#[test]
fn a_hook_runs_at_the_divergence() {
    let (text, _) = record(echo, b"hello");
    let transcript: Transcript = text.parse().unwrap();
    let mut lines = Vec::new();
    let mut replay = Replay::new(&transcript).at_divergence(|error| lines.push(error.line));
    replay.end(5);
    replay.end(5);
    assert!(replay.finish().is_err());
    assert_eq!(lines, [2]);
}

#[test]
fn foreign_lines_are_refused_with_their_place() {
    let (text, _) = record(echo, b"hello");
    let head = text.lines().next().unwrap();
    let error = |text: &str| {
        let error = text.parse::<Transcript>().unwrap_err();
        (error.line, error.byte)
    };
    assert_eq!(error(""), (1, 0));
    assert_eq!(error("\n"), (1, 0));
    assert_eq!(error(head), (1, head.len() as u64));
    assert_eq!(error("{\"k\":\"read\"}\n"), (1, 11));
    let with = |line: &str| error(&format!("{head}\n{line}\n"));
    assert_eq!(with("[]"), (2, 0));
    assert_eq!(with(r#"{"k":"sing","i":0}"#), (2, 0));
    assert_eq!(with(r#"{"k":"end", "i":0,"h":0}"#), (2, 11));
    assert_eq!(with(r#"{"k":"end","i":1,"h":0}"#), (2, 15));
    assert_eq!(with(r#"{"k":"end","i":0,"h":0,"x":0}"#), (2, 22));
    assert_eq!(
        with(r#"{"k":"read","i":0,"h":0,"ret":0,"b64":"AB=="}"#),
        (2, 39)
    );
    assert_eq!(
        with(r#"{"k":"mem_in","i":0,"off":0,"len":1,"crc":"00000000"}"#),
        (2, 6)
    );
    let ctl = |line: &str| {
        let request = r#"{"k":"ctl_req","i":0,"b64":""}"#;
        error(&format!("{head}\n{request}\n{line}\n")).0
    };
    for wrong in [
        r#"{"k":"mem_in","i":0,"off":0,"len":0,"crc":"00000000"}"#,
        r#"{"k":"mem_in","i":0,"off":16384,"len":1,"crc":"00000000"}"#,
        r#"{"k":"mem_in","i":0,"off":18446744073709551615,"len":1,"crc":"00000000"}"#,
        r#"{"k":"mem_out","i":0,"off":16384,"b64":"AA=="}"#,
        r#"{"k":"mem_out","i":0,"off":0,"b64":""}"#,
        r#"{"k":"ctl_res","i":0,"ret":0,"b64":""}"#,
        r#"{"k":"ctl_res","i":0,"ret":1,"b64":"AA=="}"#,
        r#"{"k":"end","i":0,"h":0}"#,
    ] {
        assert_eq!(ctl(wrong), 3, "{wrong}");
    }
    assert_eq!(
        ctl(r#"{"k":"mem_in","i":0,"off":0,"len":1,"crc":"00000000"}"#),
        4
    );
}

#[test]
fn long_texts_take_no_more_memory_than_their_bytes_justify() {
    const COUNT: usize = 10_000;
    let (text, _) = record(echo, b"");
    let head = text.lines().next().unwrap();
    let many = |what: &str| what.repeat(COUNT);
    let keys: String = (0..COUNT).map(|key| format!("\"{key}\":0,")).collect();
    let calls: String = (0..COUNT)
        .map(|call| format!("{{\"k\":\"end\",\"i\":{call},\"h\":0}}\n"))
        .collect();
    let ranges: String = (0..COUNT)
        .map(|offset| {
            format!(
                "{{\"k\":\"mem_in\",\"i\":0,\"off\":{offset},\"len\":1,\"crc\":\"00000000\"}}\n"
            )
        })
        .collect();
    for wrong in [
        many("["),
        many("{\"k\":"),
        format!("[{}0]", many("0,")),
        format!("{{\"k\":[{}0]}}", many("0,")),
        format!("{{\"k\":[{}[]]}}", many("[],")),
        format!("{{\"k\":[{}{{}}]}}", many("{\"\":0},")),
        format!("{{\"k\":\"end\",\"i\":0,{keys}\"h\":0}}"),
        format!("{{{}\"k\":\"end\"}}", many("\"k\":\"read\",")),
        format!("{{\"k\":\"{}\"}}", many("\\u0000")),
        format!("{{\"k\":\"end\",\"i\":0,\"h\":{}}}", many("9")),
        format!(
            r#"{{"k":"read","i":0,"h":0,"ret":2147483647,"b64":"{}"}}"#,
            many("AAA")
        ),
        format!("{{\"k\":\"ctl_req\",\"i\":0,\"b64\":\"\"}}\n{ranges}"),
    ] {
        assert!(parse(&format!("{head}\n{wrong}\n")).is_err());
    }
    let most = u64::MAX;
    let largest = head.replace(
        &format!("\"mem_cap\":{MEMORY}"),
        &format!("\"mem_cap\":{most}"),
    );
    let transcript = parse(&format!("{largest}\n{calls}")).unwrap();
    assert_eq!(
        (transcript.calls(), transcript.memory_bytes()),
        (COUNT, most)
    );
}

#[test]
fn records_of_no_kernels_and_of_the_other_framing_replay() {
    // CAPS_LIST of ZCL1, whose answer is made up.
    let request = "WkNMMQEAAQABAAAAAAAAAAAAAAAAAAAA";
    let response = "WkNMMQEAAQABAAAAAAAAAAgAAAABAAAAAAAAAA==";
    let text = format!(
        "{}\n{}\n{}\n",
        r#"{"k":"zctl","v":1,"manifest":"0000000000000000000000000000000000000000000000000000000000000000","backend":"cuda","mem_cap":64}"#,
        format_args!(r#"{{"k":"ctl_req","i":0,"b64":"{request}"}}"#),
        format_args!(r#"{{"k":"ctl_res","i":0,"ret":28,"b64":"{response}"}}"#),
    );
    let guest = |host: &mut dyn Host| {
        let mut memory = vec![0; 64];
        memory[..12].copy_from_slice(b"ZCL1\x01\x00\x01\x00\x01\x00\x00\x00");
        let call = Call {
            req_len: 24,
            resp_ptr: 24,
            resp_cap: 40,
            ..Call::default()
        };
        assert_eq!(host.ctl(Some(3), &mut memory, call), 28);
        assert_eq!(memory[44], 1);
    };
    assert_eq!(replay(guest, &text), Ok(1));
    let wrong = text.replace("AAgAAAAB", "AAkAAAAB").parse::<Transcript>();
    assert_eq!(wrong.unwrap_err().byte, 16);
}

/// A guest's calls, as a strategy makes them up.
#[derive(Clone, Debug)]
enum Step {
    Read(i32, i32, i32),
    Write(i32, i32, i32),
    End(i32),
    Ctl(u16, i32, i32, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let number = prop_oneof![0..300i32, any::<i32>()];
    let handle = -1..5i32;
    prop_oneof![
        (handle.clone(), number.clone(), number.clone()).prop_map(|(h, p, n)| Step::Read(h, p, n)),
        (handle.clone(), number.clone(), number.clone()).prop_map(|(h, p, n)| Step::Write(h, p, n)),
        handle.prop_map(Step::End),
        (
            prop_oneof![Just(1u16), Just(0x101), Just(0x102), any::<u16>()],
            number.clone(),
            number,
            any::<bool>()
        )
            .prop_map(|(op, p, n, crc)| Step::Ctl(op, p, n, crc)),
    ]
}

fn follow(host: &mut dyn Host, steps: &[Step]) {
    let mut memory = vec![0; 256];
    for step in steps {
        match *step {
            Step::Read(handle, ptr, cap) => {
                host.read(handle, &mut memory, ptr, cap);
            }
            Step::Write(handle, ptr, len) => {
                host.write(handle, &memory, ptr, len);
            }
            Step::End(handle) => host.end(handle),
            Step::Ctl(op, resp_ptr, resp_cap, has_crc) => {
                memory[64..96].copy_from_slice(&frame(op, &[], has_crc));
                let call = Call {
                    req_ptr: 64,
                    req_len: 32,
                    resp_ptr,
                    resp_cap,
                    timeout_ms: 0,
                };
                host.ctl(Some(3), &mut memory, call);
            }
        }
    }
}

/// The transcript of steps without a session, which many cases have time for.
fn record_steps(steps: &[Step], input: &[u8]) -> String {
    let text = Shared::default();
    let mut cloak = silent(input).with_recorder(Recorder::new(text.clone(), Backend::Host, b""));
    follow(&mut cloak, steps);
    cloak.finish().unwrap();
    String::from_utf8(text.bytes()).unwrap()
}

/// 200 cases, or PROPTEST_CASES.
fn cases() -> ProptestConfig {
    let wanted = std::env::var("PROPTEST_CASES").ok();
    ProptestConfig::with_cases(wanted.and_then(|cases| cases.parse().ok()).unwrap_or(200))
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn what_any_guest_does_replays(
        steps in proptest::collection::vec(step(), 0..20),
        input in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let text = record_steps(&steps, &input);
        prop_assert_eq!(replay(|host| follow(host, &steps), &text), Ok(steps.len()));
        let longer = [&steps[..], &[Step::End(7)]].concat();
        prop_assert!(replay(|host| follow(host, &longer), &text).is_err());
    }

    #[test]
    fn changed_transcripts_are_survived(
        steps in proptest::collection::vec(step(), 0..12),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..6),
    ) {
        let text = record_steps(&steps, b"some input\r\n");
        let mut bytes = text.into_bytes();
        for (index, byte, how) in edits {
            let at = index.index(bytes.len());
            match how {
                0 => bytes[at] = byte & 0x7f,
                1 => bytes.insert(at, byte & 0x7f),
                _ if bytes.len() > 1 => drop(bytes.remove(at)),
                _ => {}
            }
        }
        let text = String::from_utf8(bytes).unwrap();
        let _ = limited(|| replay(|host| follow(host, &steps), &text));
        let _ = limited(|| replay(add, &text));
    }

    #[test]
    fn any_text_is_survived(text in "(\\{\"k\":\"(zctl|read|mem_in|ctl_res)\",.{0,40}\\}\n?){0,4}|.{0,80}") {
        let _ = limited(|| parse(&text));
    }
}

type In = unsafe extern "C" fn(*mut std::ffi::c_void, i32, *mut u8, usize, i32, i32) -> i32;

/// A native guest that reads, with and without a memory, and traps with what it got.
unsafe extern "C" fn native(
    input: i32,
    _: i32,
    read: In,
    _: In,
    _: unsafe extern "C" fn(*mut std::ffi::c_void, i32),
    _: unsafe extern "C" fn(*mut std::ffi::c_void, *mut u8, usize, i32, i32, i32, i32),
    _: *const std::ffi::c_void,
    ctx: *mut std::ffi::c_void,
    _: *const GuestHeap,
) -> i32 {
    let mut memory = [0u8; 8];
    // SAFETY: the memory is this function's.
    unsafe {
        assert_eq!(read(ctx, input, std::ptr::null_mut(), 8, 0, 0), -1);
        read(ctx, input, memory.as_mut_ptr(), 8, 0, 8)
    }
}

#[test]
fn a_native_guest_ends_with_its_trap_code() {
    let guest = Guest {
        entry: native,
        heap_base: 0,
        shape: Shape::Two,
    };
    let run = |input: &[u8]| {
        // SAFETY: the entry has the right type and uses its own memory.
        unsafe { guest.run(&mut silent(input)) }
    };
    assert_eq!(run(b""), Ok(()));
    assert_eq!(run(b"abcd"), Err(Trap(4)));
    assert_eq!(Trap(4).to_string(), "trap 4: a host function failed");
    assert_eq!(Trap(-1).to_string(), "trap -1: unknown");
}

#[test]
fn a_panicking_host_fails_the_call_and_continues_after_the_guest() {
    struct Panics;
    impl Host for Panics {
        fn stdio(&self) -> (i32, i32) {
            (0, 1)
        }
        fn read(&mut self, _: i32, memory: &mut [u8], _: i32, _: i32) -> i32 {
            if memory.is_empty() {
                -1
            } else {
                panic!("no input")
            }
        }
        fn write(&mut self, _: i32, _: &[u8], _: i32, _: i32) -> i32 {
            -1
        }
        fn end(&mut self, _: i32) {}
        fn log(&mut self, _: &[u8], _: (i32, i32), _: (i32, i32)) {}
        fn ctl(&mut self, _: Option<i32>, _: &mut [u8], _: Call) -> i32 {
            -1
        }
    }
    let guest = Guest {
        entry: native,
        heap_base: 0,
        shape: Shape::One,
    };
    let ran = std::panic::catch_unwind(|| {
        // SAFETY: as above.
        unsafe { guest.run(&mut Panics) }
    });
    assert_eq!(
        *ran.unwrap_err().downcast_ref::<&str>().unwrap(),
        "no input"
    );
}
