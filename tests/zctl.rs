//! ZCTL/1: sessions, servers and clients over socket pairs and sockets, on the CPU.
#![cfg(feature = "zctl")]

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use worker_cuda::zctl::{
    Answers, Arg, Call, Client, Record, Server, ServerOptions, Session, SessionOptions, Status,
    refusal,
};
use worker_cuda::{CudaContext, ElementType, ErrorKind, GpuCompute, KernelSpec};

/// noop 1, tensor_add 2, vector_add 3.
fn kernels() -> Arc<GpuCompute> {
    let compute = GpuCompute::with_context(&CudaContext::host().unwrap()).unwrap();
    for name in ["noop", "tensor_add", "vector_add"] {
        compute.register_builtin(name, ElementType::F32, 0).unwrap();
    }
    Arc::new(compute)
}

fn serve(options: ServerOptions) -> (UnixStream, JoinHandle<()>) {
    let server = Server::new(Some(kernels()), options).unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let thread = thread::spawn(move || server.serve(&mut theirs).unwrap());
    (ours, thread)
}

fn frame(op: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = b"ZCTL\x01\x00".to_vec();
    frame.extend(op.to_le_bytes());
    for field in [0, 7, payload.len() as u32, 0, 0, 0] {
        frame.extend(field.to_le_bytes());
    }
    frame.extend(payload);
    frame
}

/// All that a server sends until it closes.
fn answers_to(bytes: &[u8], options: ServerOptions) -> Vec<u8> {
    let (mut stream, thread) = serve(options);
    stream.write_all(bytes).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answers = Vec::new();
    // A server that closes before it has read everything resets the connection.
    let _ = stream.read_to_end(&mut answers);
    thread.join().unwrap();
    answers
}

fn floats(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

#[test]
fn client_and_server_agree_on_every_operation() {
    for has_crc in [false, true] {
        let (stream, thread) = serve(ServerOptions::default());
        let mut client = Client::new(stream);
        if has_crc {
            client = client.with_crc();
        }
        let names = |list: Vec<worker_cuda::zctl::Listed>| {
            list.into_iter()
                .map(|each| (each.id, each.name))
                .collect::<Vec<_>>()
        };
        let capabilities = names(client.capabilities().unwrap());
        assert_eq!(capabilities[2], (3, "wcuda.remote".to_owned()));
        let kernels = client.kernels().unwrap();
        assert_eq!(kernels[1].sig_hash, 0xa1);
        assert_eq!(names(kernels)[2], (3, "vector_add".to_owned()));
        let described = client.describe(3).unwrap();
        assert_eq!(described.parameters, ["a", "b", "c", "n"]);
        assert_eq!(described.signature, "r f32[$3];r f32[$3];w f32[$3];i64;");
        assert_eq!(
            client.describe(9).unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
        let info = client.memory_info().unwrap();
        assert_eq!((info.memory_bytes, info.budget_ms), (16 << 20, 30_000));

        client.write_memory(0, &floats(&[1.0, 2.0])).unwrap();
        let bytes = |offset| Arg::Bytes { offset, length: 8 };
        let answer = client
            .run(3, &[bytes(0), bytes(0), bytes(64), Arg::I64(2)])
            .unwrap();
        assert!(answer.is_ok(), "{}", answer.message);
        assert_eq!(client.read_memory(64, 8).unwrap(), floats(&[2.0, 4.0]));
        let refused = client.run(3, &[Arg::F32(1.0)]).unwrap();
        assert_eq!(refused.status, Status::BadArgs);
        assert_eq!(refused.message, "1 args, the kernel takes 4");
        drop(client);
        thread.join().unwrap();
    }
}

#[test]
fn memory_larger_than_a_payload_goes_in_pieces() {
    let mut options = ServerOptions::default();
    options.session.payload_bytes_max = 100;
    options.memory_bytes = 4096;
    let (stream, thread) = serve(options);
    let mut client = Client::new(stream);
    let bytes: Vec<u8> = (0..4096).map(|i| (i % 251) as u8).collect();
    client.write_memory(0, &bytes).unwrap();
    assert_eq!(client.read_memory(0, 4096).unwrap(), bytes);
    assert_eq!(
        client.write_memory(4090, &bytes[..7]).unwrap_err().kind(),
        ErrorKind::Malformed
    );
    drop(client);
    thread.join().unwrap();
}

#[test]
fn what_is_no_frame_closes_after_the_answers_so_far() {
    let good = frame(0x7777, &[]);
    let answer = 32;
    let after_one = |bytes: &[u8]| {
        let all = [&good[..], bytes].concat();
        answers_to(&all, ServerOptions::default()).len()
    };
    assert_eq!(after_one(&[]), answer);
    assert_eq!(after_one(b"ZCTX"), answer);
    let mut version = good.clone();
    version[4] = 2;
    assert_eq!(after_one(&[version, good.clone()].concat()), answer);
    let two = frame(0x8001, &[0; 9]);
    for bytes in 0..two.len() {
        assert_eq!(after_one(&two[..bytes]), answer, "{bytes}");
    }
    assert_eq!(after_one(&two), 2 * answer);
}

#[test]
fn a_payload_over_the_limit_is_answered_before_its_bytes_come() {
    let mut options = ServerOptions::default();
    options.session.payload_bytes_max = 8;
    let mut long = frame(1, &[]);
    long[16..20].copy_from_slice(&9u32.to_le_bytes());
    let (mut stream, thread) = serve(options);
    stream.write_all(&long).unwrap();
    let mut answers = Vec::new();
    stream.read_to_end(&mut answers).unwrap();
    assert_eq!((answers.len(), answers[16]), (32, 1));
    thread.join().unwrap();
}

#[test]
fn frames_in_one_write_are_answered_in_order() {
    let mut all = Vec::new();
    for i in 0..1000u32 {
        let mut one = frame(0x8001, &[0; 100]);
        one[12..16].copy_from_slice(&i.to_le_bytes());
        all.extend(one);
    }
    let (mut stream, thread) = serve(ServerOptions::default());
    let mut reader = stream.try_clone().unwrap();
    let writing = thread::spawn(move || {
        stream.write_all(&all).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
    });
    let mut answers = Vec::new();
    reader.read_to_end(&mut answers).unwrap();
    writing.join().unwrap();
    thread.join().unwrap();
    let ids: Vec<u8> = answers
        .chunks(32)
        .flat_map(|answer| answer[12..16].to_vec())
        .collect();
    let expected: Vec<u8> = (0..1000u32).flat_map(u32::to_le_bytes).collect();
    assert_eq!(ids, expected);
}

#[test]
fn a_silent_client_is_closed_only_within_a_frame() {
    let options = ServerOptions {
        frame_timeout: Duration::from_millis(20),
        ..ServerOptions::default()
    };
    let (mut stream, thread) = serve(options);
    let good = frame(0x7777, &[]);
    let mut answer = [0; 32];
    stream.write_all(&good).unwrap();
    stream.read_exact(&mut answer).unwrap();
    // Longer than the timeout, between two frames.
    thread::sleep(Duration::from_millis(60));
    stream.write_all(&good).unwrap();
    stream.read_exact(&mut answer).unwrap();
    stream.write_all(&good[..31]).unwrap();
    assert_eq!(stream.read(&mut answer).unwrap_or(0), 0);
    thread.join().unwrap();
}

#[test]
fn a_listener_serves_privately_up_to_its_limit_and_stops() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("zctl-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let options = ServerOptions {
        connections_max: 2,
        memory_bytes: 4096,
        ..ServerOptions::default()
    };
    let server = Server::new(Some(kernels()), options.clone()).unwrap();
    let listener = server.listen(&path).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let taken = Server::new(None, options).unwrap().listen(&path);
    assert_eq!(taken.unwrap_err().kind(), ErrorKind::Io);

    let stop = listener.stop_handle();
    let serving = thread::spawn(move || listener.run().unwrap());
    let mut first = Client::new(UnixStream::connect(&path).unwrap());
    let mut second = Client::new(UnixStream::connect(&path).unwrap());
    first.write_memory(0, b"first").unwrap();
    second.write_memory(0, b"second").unwrap();
    assert_eq!(first.read_memory(0, 5).unwrap(), b"first");
    let mut third = UnixStream::connect(&path).unwrap();
    assert_eq!(third.read(&mut [0; 1]).unwrap_or(0), 0);
    stop.stop();
    serving.join().unwrap();
    assert!(!path.exists());
    assert_eq!(first.capabilities().unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn threads_listen_in_one_folder_at_the_same_time() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("zctl_many");
    let _ = std::fs::remove_dir_all(&folder);
    // What a process that was killed has left.
    std::fs::create_dir_all(folder.join(format!(".zctl-{}-0", std::process::id()))).unwrap();
    thread::scope(|scope| {
        for thread in 0..4 {
            let folder = &folder;
            scope.spawn(move || {
                for i in 0..50 {
                    let path = folder.join(format!("{thread}-{i}"));
                    let server = Server::new(None, ServerOptions::default()).unwrap();
                    drop(server.listen(&path).unwrap());
                }
            });
        }
    });
}

#[test]
fn a_listener_whose_path_is_gone_stops() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("zctl_gone.sock");
    let _ = std::fs::remove_file(&path);
    let listener = Server::new(None, ServerOptions::default())
        .unwrap()
        .listen(&path)
        .unwrap();
    let stop = listener.stop_handle();
    let serving = thread::spawn(move || listener.run().unwrap());
    // It accepts.
    drop(UnixStream::connect(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    stop.stop();
    serving.join().unwrap();
}

#[test]
fn without_kernels_runs_give_the_reason() {
    let options = ServerOptions {
        reason: "no driver".to_owned(),
        ..ServerOptions::default()
    };
    let server = Server::new(None, options).unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let thread = thread::spawn(move || server.serve(&mut theirs).unwrap());
    let mut client = Client::new(ours);
    assert_eq!(client.kernels().unwrap()[0].flags, 2);
    let answer = client.run(1, &[]).unwrap();
    assert_eq!(
        (answer.status, answer.message.as_str()),
        (Status::Backend, "no driver")
    );
    drop(client);
    thread.join().unwrap();
}

#[test]
fn a_refusal_has_the_bytes_of_a_sessions_answer() {
    let mut session = Session::without_device("why", &SessionOptions::default()).unwrap();
    let mut response = Vec::new();
    let run = frame(0x0102, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert!(session.serve(&mut [], &run, &mut response));
    assert_eq!(refusal(&run, Status::Backend, "why"), response);
    let mut with_crc = run.clone();
    with_crc[24] = 1;
    let answer = refusal(&with_crc, Status::Backend, "why");
    assert_ne!(answer[24..28], [0; 4]);
    assert_eq!(
        (&answer[..24], &answer[28..]),
        (&response[..24], &response[28..])
    );
    let late = refusal(&run, Status::Timeout, "late");
    assert_eq!((late[16], late[36], &late[44..]), (4, 4, &b"late"[..]));
    let read = frame(0x8011, &[9, 0, 0, 0, 4, 0, 0, 0]);
    assert!(session.serve(&mut [], &read, &mut response));
    assert_eq!(refusal(&read, Status::Timeout, ""), response);
    assert_eq!(refusal(&frame(0x8003, &[]), Status::Timeout, "")[16], 6);
    for bytes in 0..run.len() {
        assert!(refusal(&run[..bytes], Status::Timeout, "").len() >= 32);
    }

    let open = b"ZCL1\x01\0\x03\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let expected = [
        &b"ZCL1\x01\0\x03\0\x02\0\0\0\0\0\0\0\x30\0\0\0\0\0\0\0"[..],
        b"\x0d\0\0\0t_ctl_timeout\x13\0\0\0operation timed out\0\0\0\0",
    ];
    assert_eq!(refusal(open, Status::Timeout, ""), expected.concat());
}

/// A frame of ZCL1 that opens `mode` of accel.
fn open(mode: u32, params: &[u8]) -> Vec<u8> {
    let kind = b"\x05\0\0\0accel\x07\0\0\0default";
    let length = (params.len() as u32).to_le_bytes();
    let payload = [&kind[..], &mode.to_le_bytes(), &length, params].concat();
    let mut frame = b"ZCL1\x01\0\x03\0".to_vec();
    for word in [1, 60_000, 0, payload.len() as u32] {
        frame.extend(word.to_le_bytes());
    }
    [frame, payload].concat()
}

#[test]
fn a_submission_gives_a_closure_no_buffer_twice_that_it_writes() {
    let compute = kernels();
    let both = KernelSpec::new("both")
        .read::<i32>("x", ["n".into()])
        .write::<i32>("y", ["n".into()])
        .scalar::<i32>("n")
        .host(|call| {
            let x = call.slice::<i32>(0)?;
            let y = call.slice_mut::<i32>(1)?;
            assert_ne!(x.as_ptr(), y.as_ptr());
            y.copy_from_slice(x);
            Ok(())
        });
    compute.register(both).unwrap();
    let mut session = Session::new(&compute, &SessionOptions::default()).unwrap();
    let mut response = Vec::new();
    let mut answer = |frame: &[u8]| {
        assert!(session.serve(&mut [], frame, &mut response));
        response.clone()
    };
    let device = b"\x04\0\0\0host\x01\0\0\x000";
    for handle in [4, 5] {
        let buffer = [&device[..], &[8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
        assert_eq!(answer(&open(2, &buffer))[24], handle);
    }
    let mut submit = |x: u8, y: u8| {
        let mut params = [&device[..], b"\x05\0\0\0wcuda\x04\0\0\0both", &[0; 28]].concat();
        params.extend([3, 0, 0, 0]);
        for handle in [x, y] {
            params.extend([2, 0, 0, 0, 4, 0, 0, 0, handle, 0, 0, 0]);
        }
        params.extend([1, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        answer(&open(3, &params))
    };
    assert_eq!(
        submit(4, 4)[28..],
        b"t_ctl_bad_params\x0e\0\0\0bad parameters\0\0\0\0"[..]
    );
    assert_eq!(submit(4, 5)[20], 1);
}

#[test]
fn a_panic_of_a_host_function_is_answered_and_is_no_later_call_s() {
    let compute = kernels();
    let panics = KernelSpec::new("panics").id(77);
    compute
        .register(panics.host(|_| panic!("of the kernel")))
        .unwrap();
    let mut session = Session::new(&compute, &SessionOptions::default()).unwrap();
    let mut response = Vec::new();
    let run = frame(0x0102, &[77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert!(session.serve(&mut [], &run, &mut response));
    assert_eq!(response[36], 6);
    compute.run("noop", &[]).unwrap();
}

#[test]
fn answers_that_panic_end_their_connection_alone() {
    struct Panics;
    impl Answers for Panics {
        fn answer(&mut self, _: &[u8], _: &mut Vec<u8>) -> bool {
            panic!("of the answers")
        }
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("zctl_panics.sock");
    let _ = std::fs::remove_file(&path);
    let options = ServerOptions {
        connections_max: 1,
        ..ServerOptions::default()
    };
    let server = Server::with_answers(|| Ok(Box::new(Panics)), options).unwrap();
    let listener = server.listen(&path).unwrap();
    let stop = listener.stop_handle();
    let serving = thread::spawn(move || listener.run().unwrap());
    for _ in 0..3 {
        let mut stream = UnixStream::connect(&path).unwrap();
        // Closed unanswered: by the panic, or because the one before has not ended yet.
        let _ = stream.write_all(&frame(1, &[]));
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0);
    }
    stop.stop();
    serving.join().unwrap();
}

#[test]
fn a_recorder_sees_each_call_and_survives_its_own_panic() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&lines);
    let compute = kernels();
    let options = SessionOptions::default();
    let mut session = Session::with_recorder(&compute, &options, move |record| {
        let line = match record {
            Record::Request(bytes) => format!("request {}", bytes.len()),
            Record::Read(offset, bytes) => format!("read {offset} {}", bytes.len()),
            Record::Written(offset, bytes) => format!("written {offset} {bytes:?}"),
            Record::Response(ret, _) => format!("response {ret}"),
            _ => "else".to_owned(),
        };
        seen.lock().unwrap().push(line);
        if matches!(record, Record::Request(_)) {
            panic!("of the recorder");
        }
    })
    .unwrap();
    let mut memory = vec![0; 4096];
    let mut payload = Vec::new();
    for word in [3, 4, 0, 0]
        .into_iter()
        .chain([10, 2048, 4, 0, 10, 2048, 4, 0, 10, 2052, 4, 0, 1, 1, 0, 0])
    {
        payload.extend(u32::to_le_bytes(word));
    }
    let request = frame(0x0102, &payload);
    memory[..request.len()].copy_from_slice(&request);
    memory[2048..2052].copy_from_slice(&1.5f32.to_le_bytes());
    let call = Call {
        req_len: request.len() as i32,
        resp_ptr: 1024,
        resp_cap: 100,
        ..Call::default()
    };
    assert_eq!(session.call(&mut memory, call), 44);
    drop(session);
    let written = format!("written 2052 {:?}", 3.0f32.to_le_bytes());
    assert_eq!(
        *lines.lock().unwrap(),
        ["request 112", "read 2048 4", &written, "response 44"]
    );
}

#[test]
fn a_session_outlives_the_kernels_it_was_made_from() {
    let compute = kernels();
    compute
        .register(
            KernelSpec::new("seven")
                .write::<i32>("x", ["n".into()])
                .scalar::<i32>("n")
                .host(|call| {
                    call.slice_mut::<i32>(0)?.fill(7);
                    Ok(())
                }),
        )
        .unwrap();
    let id = compute.registered().unwrap().last().unwrap().id;
    let server = Server::new(Some(compute), ServerOptions::default()).unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let thread = thread::spawn(move || server.serve(&mut theirs).unwrap());
    let mut client = Client::new(ours);
    let bytes = Arg::Bytes {
        offset: 16,
        length: 8,
    };
    assert!(client.run(id, &[bytes, Arg::U32(2)]).unwrap().is_ok());
    assert_eq!(client.read_memory(16, 8).unwrap(), [7, 0, 0, 0, 7, 0, 0, 0]);
    drop(client);
    thread.join().unwrap();
}

#[test]
fn wrong_limits_are_refused_when_a_server_is_made() {
    let refused = |change: fn(&mut ServerOptions)| {
        let mut options = ServerOptions::default();
        change(&mut options);
        Server::new(None, options).unwrap_err().kind()
    };
    assert_eq!(
        refused(|options| options.memory_bytes = (1 << 30) + 1),
        ErrorKind::InvalidArgument
    );
    assert_eq!(
        refused(|options| options.session.rank_max = 9),
        ErrorKind::InvalidArgument
    );
    assert_eq!(
        refused(|options| options.session.payload_bytes_max = 0),
        ErrorKind::InvalidArgument
    );
}
