//! `worker-orcd zctl`: servers on sockets and on stdin, and calls of them.

use std::io::{BufRead, BufReader};
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
