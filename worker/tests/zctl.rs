//! `worker-orcd zctl`: servers on sockets and on stdin, and calls of them.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use support::{assert_fails, run, stderr, worker};

mod support;

fn temporary(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// A served socket; ends with its input.
struct Served {
    child: Child,
    address: String,
    path: PathBuf,
}

impl Served {
    fn start(name: &str, more: &[&str]) -> Self {
        let path = temporary(name);
        let _ = std::fs::remove_file(&path);
        let address = format!("unix:{}", path.display());
        let mut child = worker(&["zctl", "serve", "--backend", "host", "--listen", &address])
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the worker starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("is piped");
        BufReader::new(output).read_line(&mut line).expect("UTF-8");
        assert_eq!(line, format!("listening on {address}\n"));
        Self {
            child,
            address,
            path,
        }
    }

    fn call(&self, words: &[&str]) -> std::process::Output {
        run(&[&["zctl", "call", &self.address], words].concat())
    }

    fn json(&self, words: &[&str]) -> Value {
        let output = self.call(&[words, &["--json"]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Closes its input, and returns its exit status.
    fn end(mut self) -> Option<i32> {
        drop(self.child.stdin.take());
        let status = self.child.wait().expect("is our child");
        assert!(!self.path.exists());
        status.code()
    }
}

/// A .npy file of f32.
fn npy(name: &str, values: &[f32]) -> String {
    let mut header = format!(
        "{{'descr': '<f4', 'fortran_order': False, 'shape': ({},), }}",
        values.len()
    );
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    let path = temporary(name);
    std::fs::write(&path, bytes).expect("a temporary file");
    path.display().to_string()
}

#[test]
fn a_served_kernel_runs_on_arrays() {
    let served = Served::start("zctl_arrays", &["--catalogue"]);
    let kernels = served.json(&["kernels"]);
    let list = kernels["kernels"].as_array().expect("a list");
    assert_eq!(list[1]["name"], "tensor_add");
    assert_eq!(list[1]["sig_hash"], "00000000000000a1");
    assert!(list.len() > 50);
    let capabilities = served.json(&["caps"]);
    assert_eq!(capabilities["capabilities"][2]["name"], "wcuda.remote");
    assert_eq!(served.json(&["info"])["memory_bytes"], 16 << 20);
    assert_eq!(
        served.json(&["describe", "2"])["signature"],
        "r f32[$3];r f32[$3];w f32[$3];i64;"
    );

    let input = npy("zctl_a.npy", &[1.0, 2.0, 3.0]);
    let output = temporary("zctl_c.npy").display().to_string();
    let from = format!("tensor:in={input}");
    let to = format!("tensor:out=f32[3]>{output}");
    let ran = served.call(&["run", "2", &from, &from, &to, "i64:3", "--crc"]);
    assert!(ran.status.success(), "{}", stderr(&ran));
    let bytes = std::fs::read(&output).expect("is written");
    let sums: Vec<u8> = [2.0f32, 4.0, 6.0]
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    assert!(bytes.ends_with(&sums));

    let wrong = served.call(&["run", "2", &from, &from, &to, "i64:4"]);
    assert_fails(
        &wrong,
        1,
        "kernel 2: arg 0: the shape is not the parameter's (code 7)",
    );
    assert_fails(&served.call(&["describe", "9999"]), 1, "status 7");
    assert_fails(&served.call(&["run", "2", "i32:x"]), 2, "'i32:x'");
    assert_fails(&served.call(&["sing"]), 2, "not caps, info, kernels");
    assert_eq!(served.end(), Some(0));
}

#[test]
fn only_allowed_kernels_run_within_the_memory() {
    let served = Served::start("zctl_allowed", &["--allow", "1", "--memory", "1"]);
    assert!(served.call(&["run", "1"]).status.success());
    let refused = served.call(&["run", "2", "u32:1", "u32:1", "u32:1", "u32:1"]);
    assert_fails(&refused, 1, "kernel is not allowed (code 3)");
    assert_eq!(served.json(&["info"])["memory_bytes"], 1 << 20);
    assert_eq!(served.end(), Some(0));
}

#[test]
fn sigterm_ends_a_server_with_status_0() {
    let mut served = Served::start("zctl_term", &[]);
    let pid = served.child.id().to_string();
    let sent = Command::new("kill").args(["-TERM", &pid]).status();
    assert!(sent.expect("kill runs").success());
    assert_eq!(served.child.wait().expect("is our child").code(), Some(0));
}

#[test]
fn a_spawned_server_is_called_on_its_input() {
    let command = format!(
        "{} zctl serve --stdio --backend host",
        env!("CARGO_BIN_EXE_worker-orcd")
    );
    let spawn = |words: &[&str]| run(&[&["zctl", "call", "--spawn", &command], words].concat());
    let sizes = spawn(&["run", "2", "u32:9", "u32:9", "u32:9", "u32:9"]);
    assert!(sizes.status.success(), "{}", stderr(&sizes));
    let listed = spawn(&["kernels"]);
    let text = String::from_utf8(listed.stdout).expect("UTF-8");
    assert_eq!(
        text,
        "    1  0000000000000000  noop\n    2  00000000000000a1  tensor_add\n"
    );
}

/// Bytes to a server on stdin, until it closes.
fn answers_to(frames: &[u8], more: &[&str]) -> Vec<u8> {
    let mut child = worker(&["zctl", "serve", "--backend", "host", "--stdio"])
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the worker starts");
    let mut input = child.stdin.take().expect("is piped");
    input.write_all(frames).expect("it reads");
    drop(input);
    let output = child.wait_with_output().expect("is our child");
    assert_eq!(output.status.code(), Some(0));
    output.stdout
}

fn frame(magic: &[u8], op: u16, words: &[u32], payload: &[u8]) -> Vec<u8> {
    let words = words.iter().flat_map(|word| word.to_le_bytes());
    let header = [magic, &1u16.to_le_bytes(), &op.to_le_bytes()].concat();
    header
        .into_iter()
        .chain(words)
        .chain(payload.iter().copied())
        .collect()
}

#[test]
fn an_isolated_server_gives_the_same_answers() {
    let mut frames = Vec::new();
    let mut add = |op: u16, words: &[u32]| {
        let payload: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let header = [0, 7, payload.len() as u32, 0, 0, 0];
        frames.extend(frame(b"ZCTL", op, &header, &payload));
    };
    add(0x0001, &[]);
    add(0x0101, &[0]);
    add(0x0101, &[4]);
    add(0x7777, &[]);
    add(0x8003, &[]);
    add(0x8021, &[2]);
    add(0x8001, &[64, 0, 0x3f80_0000, 0x4000_0000]);
    add(0x0102, &[1, 0, 0, 0]);
    add(
        0x0102,
        &[
            2, 4, 0, 0, 10, 64, 8, 0, 10, 64, 8, 0, 10, 128, 8, 0, 2, 2, 0, 0,
        ],
    );
    add(0x8002, &[128, 0, 8, 0]);
    add(0x0102, &[9, 0, 0, 0]);
    add(0x0102, &[2, 1, 0, 0]);
    add(0x8011, &[4, 8]);
    let mut params = b"\x04\0\0\0host\x01\0\0\x000".to_vec();
    params.extend([8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut open = b"\x05\0\0\0accel\x07\0\0\0default\x02\0\0\0".to_vec();
    open.extend((params.len() as u32).to_le_bytes());
    open.extend(params);
    frames.extend(frame(b"ZCL1", 3, &[1, 0, 0, open.len() as u32], &open));
    frames.extend(frame(b"ZCL1", 9, &[2, 0, 0, 0], &[]));
    frames.extend(frame(
        b"ZCTL",
        0x8012,
        &[0, 8, 8, 0, 0, 0],
        &[4, 0, 0, 0, 1, 2, 3, 4],
    ));
    frames.extend(frame(
        b"ZCTL",
        0x8011,
        &[0, 9, 8, 0, 0, 0],
        &[4, 0, 0, 0, 9, 0, 0, 0],
    ));
    frames.extend(b"ZCTX, which closes");
    let expected = answers_to(&frames, &[]);
    assert!(expected.len() > 16 * 32, "{}", expected.len());
    assert_eq!(answers_to(&frames, &["--isolate"]), expected);
}

/// The processes that this one has started.
#[cfg(target_os = "linux")]
fn children_of(pid: u32) -> Vec<u32> {
    let parent = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_whitespace();
        (fields.next()? != "Z").then(|| fields.next()?.parse().ok())?
    };
    let all = std::fs::read_dir("/proc").expect("procfs");
    all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&each| parent(each) == Some(pid))
        .collect()
}

#[test]
#[cfg(target_os = "linux")]
fn an_isolated_process_is_replaced_and_ends_with_its_parent() {
    let mut child = worker(&["zctl", "serve", "--backend", "host", "--stdio", "--isolate"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the worker starts");
    let mut input = child.stdin.take().expect("is piped");
    let mut output = child.stdout.take().expect("is piped");
    let mut ask = |op: u16, payload: &[u8], bytes: usize| {
        let header = [0, 7, payload.len() as u32, 0, 0, 0];
        input
            .write_all(&frame(b"ZCTL", op, &header, payload))
            .expect("it reads");
        let mut answer = vec![0; 32 + bytes];
        output.read_exact(&mut answer).expect("it answers");
        answer[32..].to_vec()
    };
    ask(0x8001, &[3, 0, 0, 0, 0, 0, 0, 0, 5, 6], 0);
    let first = children_of(child.id());
    assert_eq!(first.len(), 1);
    let kill = |pid: u32| {
        Command::new("kill")
            .args(["-KILL", &pid.to_string()])
            .status()
    };
    assert!(kill(first[0]).expect("kill runs").success());
    while !children_of(child.id()).is_empty() {
        std::thread::yield_now();
    }
    let read = [3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(ask(0x8002, &read, 2), [5, 6]);
    let second = children_of(child.id());
    assert_eq!(second.len(), 1);
    assert_ne!(first, second);

    assert!(kill(child.id()).expect("kill runs").success());
    child.wait().expect("is our child");
    let process = PathBuf::from(format!("/proc/{}/exe", second[0]));
    // Of a process that has ended there is no executable.
    while process.read_link().is_ok() {
        std::thread::yield_now();
    }
}

#[test]
fn without_a_gpu_kernels_are_listed_and_runs_give_the_reason() {
    for more in ["", "--isolate"] {
        let command = format!(
            "{} zctl serve --stdio --backend cuda {more}",
            env!("CARGO_BIN_EXE_worker-orcd")
        );
        let spawn = |words: &[&str]| run(&[&["zctl", "call", "--spawn", &command], words].concat());
        let listed = String::from_utf8(spawn(&["kernels"]).stdout).expect("UTF-8");
        if !listed.contains("noop  (cannot run there)") {
            println!("skipped: there is a GPU, or none of the kernels is listed: {listed}");
            assert!(listed.contains("noop"));
            return;
        }
        let reason = if worker_cuda::built_with_cuda() {
            "no CUDA device: "
        } else {
            "CUDA runtime disabled"
        };
        let refused = spawn(&["run", "1"]);
        assert_fails(&refused, 1, &format!("kernel 1: {reason}"));
        assert_fails(&refused, 1, "(code 6)");
    }
}

#[test]
fn mistakes_are_reported() {
    assert_fails(
        &run(&["zctl", "serve", "--listen", "tcp:1", "--backend", "host"]),
        2,
        "not unix:PATH",
    );
    assert_fails(
        &run(&["zctl", "call", "unix:/does/not/exist", "caps"]),
        1,
        "unix:/does/not/exist",
    );
    assert_fails(&run(&["zctl", "call", "caps"]), 2, "a server is unix:PATH");
    let taken = temporary("zctl_taken");
    std::fs::write(&taken, "").expect("a temporary file");
    let address = format!("unix:{}", taken.display());
    assert_fails(
        &run(&["zctl", "serve", "--listen", &address, "--backend", "host"]),
        1,
        "exists",
    );
}
