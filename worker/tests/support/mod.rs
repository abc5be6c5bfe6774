//! Running the worker, and how it fails.

use std::process::{Command, Output, Stdio};

pub fn worker(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_worker-orcd"));
    command.args(args).stdin(Stdio::null());
    command
}

pub fn run(args: &[&str]) -> Output {
    worker(args).output().expect("the worker starts")
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

/// One line on stderr that begins with "error: ", and the exit status.
#[track_caller]
pub fn assert_fails(output: &Output, status: i32, part: &str) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(status), "{text}");
    let errors: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("error: "))
        .collect();
    assert_eq!(errors.len(), 1, "{text}");
    assert!(errors[0].contains(part), "no '{part}' in '{}'", errors[0]);
}
