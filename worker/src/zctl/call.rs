//! `zctl call`: one request to a server.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use worker_cuda::zctl::{Client, Listed};

use super::arg::prepare;
use crate::failure::{Failure, Outcome, one_line};
use crate::input::print_json;

const WORDS: &str =
    "unix:PATH, unless --spawn is given; then caps, info, kernels, describe ID, or run ID ARG...

ARG is i32:-5, u32:5, i64:-5, u64:5, f32:1.5, f64:1.5, bytes:@FILE, tensor:in=FILE.npy, or
tensor:out=f32[2,3]>FILE.npy";

#[derive(clap::Args)]
pub struct Args {
    /// unix:PATH, unless --spawn is given; then caps, info, kernels, describe ID, or run ID ARG...
    #[arg(value_name = "WORD", required = true, long_help = WORDS)]
    words: Vec<String>,
    /// Start this command and call it on its stdin and stdout
    #[arg(long, value_name = "CMD")]
    spawn: Option<String>,
    /// Milliseconds that a run may take [default: the server's]
    #[arg(long, value_name = "N", default_value_t = 0)]
    timeout_ms: u32,
    /// Send a checksum with each request, and check that of each answer
    #[arg(long)]
    crc: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The server that was asked for.
enum Stream {
    Socket(UnixStream),
    Process {
        child: Child,
        input: Option<ChildStdin>,
        output: ChildStdout,
    },
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Socket(stream) => stream.read(buffer),
            Self::Process { output, .. } => output.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Socket(stream) => stream.write(bytes),
            Self::Process { input, .. } => match input {
                Some(input) => input.write(bytes),
                None => Err(io::ErrorKind::BrokenPipe.into()),
            },
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Self::Process { child, input, .. } = self {
            drop(input.take()); // the end of its input ends it
            let _ = child.wait();
        }
    }
}

pub fn run(args: &Args) -> Outcome {
    let (stream, words) = connect(args)?;
    let mut client = Client::new(stream).with_timeout_ms(args.timeout_ms);
    if args.crc {
        client = client.with_crc();
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match &words[..] {
        ["caps"] => list("capabilities", &client.capabilities()?, args.json, false),
        ["kernels"] => list("kernels", &client.kernels()?, args.json, true),
        ["info"] => info(&mut client, args.json),
        ["describe", id] => describe(&mut client, kernel_id(id)?, args.json),
        ["run", id, rest @ ..] => {
            let rest: Vec<String> = rest.iter().map(|&word| word.to_owned()).collect();
            run_kernel(&mut client, kernel_id(id)?, &rest, args.json)
        }
        _ => Err(Failure::usage(format!(
            "'{}': not caps, info, kernels, describe ID or run ID ARG...",
            words.join(" ")
        ))),
    }
}

fn kernel_id(word: &str) -> Outcome<u32> {
    word.parse()
        .map_err(|_| Failure::usage(format!("'{word}': a kernel's id is a number")))
}

fn connect(args: &Args) -> Outcome<(Stream, &[String])> {
    if let Some(command) = &args.spawn {
        let mut child = Command::new("sh")
            .args(["-c", command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Failure::new(format!("{command}: {error}")))?;
        let input = child.stdin.take();
        let output = child
            .stdout
            .take()
            .ok_or_else(|| Failure::new(format!("{command}: has no output")))?;
        let stream = Stream::Process {
            child,
            input,
            output,
        };
        return Ok((stream, &args.words));
    }
    let (address, words) = args
        .words
        .split_first()
        .ok_or_else(|| Failure::usage("no server given"))?;
    let path = address
        .strip_prefix("unix:")
        .ok_or_else(|| Failure::usage(format!("'{address}': a server is unix:PATH, or --spawn")))?;
    let stream =
        UnixStream::connect(path).map_err(|error| Failure::new(format!("{address}: {error}")))?;
    Ok((Stream::Socket(stream), words))
}

fn list(what: &str, all: &[Listed], as_json: bool, is_kernels: bool) -> Outcome {
    if as_json {
        let list: Vec<Value> = all.iter().map(|each| to_json(each, is_kernels)).collect();
        return print_json(&json!({ what: list }));
    }
    let mut out = io::stdout().lock();
    for each in all {
        let name = one_line(&each.name);
        if !is_kernels {
            writeln!(out, "{:>5}  {name}", each.id)?;
            continue;
        }
        let note = match each.flags & 3 {
            0 => "",
            1 => "  (not deterministic)",
            2 => "  (cannot run there)",
            _ => "  (not deterministic, cannot run there)",
        };
        writeln!(out, "{:>5}  {:016x}  {name}{note}", each.id, each.sig_hash)?;
    }
    Ok(())
}

fn to_json(each: &Listed, is_kernel: bool) -> Value {
    if !is_kernel {
        return json!({ "id": each.id, "name": each.name });
    }
    json!({
        "id": each.id,
        "name": each.name,
        "sig_hash": format!("{:016x}", each.sig_hash),
        "flags": each.flags,
    })
}

fn info(client: &mut Client<Stream>, as_json: bool) -> Outcome {
    let info = client.memory_info()?;
    if as_json {
        return print_json(&json!({
            "memory_bytes": info.memory_bytes,
            "payload_bytes_max": info.payload_bytes_max,
            "argument_count_max": info.argument_count_max,
            "device_bytes_max": info.device_bytes_max,
            "budget_ms": info.budget_ms,
        }));
    }
    println!(
        "{} bytes of memory, {} of a payload, {} of buffers of a run; {} arguments, {} ms",
        info.memory_bytes,
        info.payload_bytes_max,
        info.device_bytes_max,
        info.argument_count_max,
        info.budget_ms
    );
    Ok(())
}

fn describe(client: &mut Client<Stream>, id: u32, as_json: bool) -> Outcome {
    let kernel = client.describe(id)?;
    if as_json {
        return print_json(&json!({
            "sig_hash": format!("{:016x}", kernel.sig_hash),
            "flags": kernel.flags,
            "budget_ms": kernel.budget_ms,
            "parameters": kernel.parameters,
            "signature": kernel.signature,
        }));
    }
    println!(
        "({}) {}",
        one_line(&kernel.parameters.join(", ")),
        one_line(&kernel.signature)
    );
    Ok(())
}

fn run_kernel(client: &mut Client<Stream>, id: u32, words: &[String], as_json: bool) -> Outcome {
    let mut prepared = prepare(words)?;
    client.write_memory(0, &prepared.memory)?;
    let answer = client.run(id, &prepared.args)?;
    if answer.is_ok() {
        for output in &mut prepared.outputs {
            let bytes = output.array.bytes.len();
            output.array.bytes = client.read_memory(output.offset as u64, bytes)?;
            output.array.write(&output.path)?;
        }
    }
    let code = answer.status.number();
    if as_json {
        print_json(&json!({ "ok": answer.is_ok(), "code": code, "message": answer.message }))?;
    }
    if answer.is_ok() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "kernel {id}: {} (code {code})",
        answer.message
    )))
}
