//! `zctl::isolate`: a device in a process of its own. This test is the process too: [`child`].

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::thread::JoinHandle;

use worker_cuda::zctl::{Arg, Client, ServerOptions, Session, SessionOptions, Status};
use worker_cuda::{CudaContext, ElementType, GpuCompute, KernelSpec};
use worker_orcd::zctl::isolate;

const MEMORY: &str = "ZCTL_ISOLATE_MEMORY";
const BUDGET: &str = "ZCTL_ISOLATE_BUDGET";
const NOOP: u32 = 1;
const ENDLESS: u32 = 11;
const EXIT: u32 = 12;

/// Of this process, or of the test that started it.
fn session_options() -> SessionOptions {
    SessionOptions {
        budget_ms: std::env::var(BUDGET).map_or(60_000, |budget| budget.parse().unwrap()),
        ..SessionOptions::default()
    }
}

#[test]
#[ignore = "the process that the other tests start"]
fn child() {
    let Some(memory) = std::env::var_os(MEMORY) else {
        return;
    };
    let compute = GpuCompute::with_context(&CudaContext::host().unwrap()).unwrap();
    for name in ["noop", "tensor_add"] {
        compute.register_builtin(name, ElementType::F32, 0).unwrap();
    }
    let endless = KernelSpec::new("endless").id(ENDLESS).budget_ms(20);
    compute
        .register(endless.host(|_| {
            loop {
                std::thread::park();
            }
        }))
        .unwrap();
    let exit = KernelSpec::new("exit").id(EXIT);
    compute
        .register(exit.host(|_| std::process::exit(3)))
        .unwrap();
    let session = Session::new(&compute, &session_options()).unwrap();
    let options = session_options();
    isolate::answer(Path::new(&memory), Some(&compute), session, &options).unwrap();
}

fn serve() -> (Client<UnixStream>, JoinHandle<()>) {
    let (stream, thread) = serve_within(session_options().budget_ms);
    (Client::new(stream), thread)
}

fn serve_within(budget_ms: u32) -> (UnixStream, JoinHandle<()>) {
    let start = move |memory: &Path| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["child", "--exact", "--ignored"])
            .env(MEMORY, memory)
            .env(BUDGET, budget_ms.to_string());
        command
    };
    let mut options = ServerOptions::default();
    options.session.budget_ms = budget_ms;
    let server = isolate::server(start, options).unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || server.serve(&mut theirs).unwrap());
    (ours, thread)
}

fn add(client: &mut Client<UnixStream>) -> Vec<u8> {
    let bytes = |offset| Arg::Bytes { offset, length: 4 };
    let args = [bytes(0), bytes(0), bytes(8), Arg::I32(1)];
    let answer = client.run(2, &args).unwrap();
    assert!(answer.is_ok(), "{}", answer.message);
    client.read_memory(8, 4).unwrap()
}

#[test]
fn a_run_that_never_ends_is_answered_and_the_next_gets_a_new_process() {
    let (mut client, thread) = serve();
    client.write_memory(0, &1.5f32.to_le_bytes()).unwrap();
    for _ in 0..2 {
        let late = client.run(ENDLESS, &[]).unwrap();
        assert_eq!(late.status, Status::Timeout);
        assert_eq!(late.message, "budget of 20 ms is over");
        // The memory is that of before.
        assert_eq!(add(&mut client), 3.0f32.to_le_bytes());
        assert_eq!(client.kernels().unwrap().len(), 4);
    }
    drop(client);
    thread.join().unwrap();
}

#[test]
fn a_process_that_ends_in_a_run_is_replaced() {
    let (client, thread) = serve();
    let mut client = client.with_crc();
    client.write_memory(0, &2.5f32.to_le_bytes()).unwrap();
    let ended = client.run(EXIT, &[]).unwrap();
    assert_eq!(ended.status, Status::Backend);
    assert_eq!(ended.message, "the process of the device has ended");
    assert_eq!(add(&mut client), 5.0f32.to_le_bytes());
    assert!(client.run(NOOP, &[]).unwrap().is_ok());
    drop(client);
    thread.join().unwrap();
}

#[test]
fn a_client_that_leaves_ends_the_run_that_it_waits_for() {
    // A budget of none: the wait would never end.
    let (mut stream, thread) = serve_within(u32::MAX);
    stream.write_all(&submit(u32::MAX)).unwrap();
    drop(stream);
    thread.join().unwrap();
}

#[test]
fn a_client_that_sends_no_more_is_answered() {
    let (mut stream, thread) = serve_within(20);
    stream.write_all(&submit(u32::MAX)).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer[28..41], *b"t_ctl_timeout");
    thread.join().unwrap();
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

/// SUBMIT of "endless", whose own timeout and budget are as long as they can be.
fn submit(timeout_ms: u32) -> Vec<u8> {
    let mut params = [text("host"), text("0"), text("wcuda"), text("endless")].concat();
    params.extend([0; 8 * 4]); // launch, shared memory, no arguments
    params.extend(u32::MAX.to_le_bytes());
    let mut payload = [text("accel"), text("default"), 3u32.to_le_bytes().to_vec()].concat();
    payload.extend((params.len() as u32).to_le_bytes());
    payload.extend(params);
    let mut frame = b"ZCL1\x01\0\x03\0".to_vec();
    for word in [5, timeout_ms, 0, payload.len() as u32] {
        frame.extend(word.to_le_bytes());
    }
    [frame, payload].concat()
}

#[test]
fn a_submission_that_never_ends_is_answered_whatever_its_own_budget() {
    // The endless kernel's own budget is 20 ms, the session's 30.
    let (mut stream, thread) = serve_within(30);
    let mut answer = |frame: &[u8], bytes: usize| {
        stream.write_all(frame).unwrap();
        let mut answer = vec![0; bytes];
        stream.read_exact(&mut answer).unwrap();
        answer
    };
    for _ in 0..2 {
        let late = answer(&submit(u32::MAX), 68 + "budget of 30 ms is over".len());
        assert_eq!(late[28..41], *b"t_ctl_timeout");
        // Queued, with a handle; the read of its record waits.
        assert_eq!(answer(&submit(0), 36)[24..28], [4, 0, 0, 0]);
        let mut read = b"ZCTL\x01\0\x11\x80".to_vec();
        for word in [0u32, 7, 8, 0, 0, 0, 4, 100] {
            read.extend(word.to_le_bytes());
        }
        assert_eq!(answer(&read, 36)[32..], [0xff; 4]);
    }
    drop(stream);
    thread.join().unwrap();
}
