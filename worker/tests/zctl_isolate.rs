//! `zctl::isolate`: a device in a process of its own. This test is the process too: [`child`].

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::thread::JoinHandle;

use worker_cuda::zctl::{Arg, Client, ServerOptions, Session, SessionOptions, Status};
use worker_cuda::{CudaContext, ElementType, GpuCompute, KernelSpec};
use worker_orcd::zctl::isolate;

const MEMORY: &str = "ZCTL_ISOLATE_MEMORY";
const NOOP: u32 = 1;
const ENDLESS: u32 = 11;
const EXIT: u32 = 12;

fn session_options() -> SessionOptions {
    SessionOptions {
        budget_ms: 60_000,
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
    isolate::answer(Path::new(&memory), Some(&compute), session).unwrap();
}

fn serve() -> (Client<UnixStream>, JoinHandle<()>) {
    let start = |memory: &Path| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["child", "--exact", "--ignored"])
            .env(MEMORY, memory);
        command
    };
    let options = ServerOptions {
        session: session_options(),
        ..ServerOptions::default()
    };
    let server = isolate::server(start, options).unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || server.serve(&mut theirs).unwrap());
    (Client::new(ours), thread)
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
