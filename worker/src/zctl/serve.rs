//! `zctl serve`: each connection has a session and a memory of its own.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use worker_cuda::zctl::{
    Connection, ForeignModules, Server, ServerOptions, Session, SessionOptions,
};
use worker_cuda::{
    ElementType, ErrorKind, GpuCompute, HostFunctions, Manifest, built_with_cuda, catalogue,
};

use super::isolate;
use crate::failure::{Failure, Outcome};
use crate::input::print_json;
use crate::load;
use crate::options::DeviceArgs;

#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Serve one connection on stdin and stdout
    #[arg(long, conflicts_with = "listen", required_unless_present = "listen")]
    stdio: bool,
    /// Listen here, mode 0600, until SIGTERM or the end of stdin
    #[arg(long, value_name = "unix:PATH")]
    listen: Option<String>,
    /// Also serve the kernels of this manifest; runs the code it names
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Also serve the whole catalogue, for f32
    #[arg(long)]
    catalogue: bool,
    /// Run only the kernels with these ids
    #[arg(long, value_name = "ID,...", value_delimiter = ',')]
    allow: Option<Vec<u32>>,
    /// Memory of a connection, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    memory: u32,
    /// Milliseconds that a run may take
    #[arg(long, value_name = "N", default_value_t = 30_000,
          value_parser = clap::value_parser!(u32).range(1..))]
    budget_ms: u32,
    /// Also run kernels that may give other bits for equal calls
    #[arg(long)]
    allow_non_deterministic: bool,
    /// Let clients load and run device code of their own, which reaches all memory of the device
    #[arg(long)]
    allow_modules: bool,
    /// Keep the device in a process for each connection, which is killed when a run does not end a second after its
    /// budget, and replaced
    #[arg(long)]
    isolate: bool,
    /// The process of --isolate: where the memory of its connection is
    #[arg(long, hide = true)]
    child_memory: Option<PathBuf>,
    /// Print the listening line as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

pub fn run(args: &Args) -> Outcome {
    let options = ServerOptions {
        session: SessionOptions {
            budget_ms: args.budget_ms,
            allowed: args.allow.clone(),
            permits_non_deterministic: args.allow_non_deterministic,
            // SAFETY: whoever starts the command trusts its guests, by a flag that says what they can reach.
            permits_modules: args
                .allow_modules
                .then(|| unsafe { ForeignModules::permit() }),
            ..SessionOptions::default()
        },
        memory_bytes: (args.memory as usize) << 20,
        ..ServerOptions::default()
    };
    if let Some(memory) = &args.child_memory {
        return serve_parent(args, &options, memory);
    }
    let server = if args.isolate {
        isolate::server(again, options)?
    } else {
        server(args, options)?
    };
    match &args.listen {
        Some(address) => listen(server, address, args.json),
        None => on_stdio(&server),
    }
}

/// This command, as the process of the device.
fn again(memory: &Path) -> Command {
    // Not the name of the executable: a newer one may have it.
    let mut command = Command::new("/proc/self/exe");
    command
        .args(std::env::args_os().skip(1))
        .arg("--child-memory")
        .arg(memory);
    command
}

fn serve_parent(args: &Args, options: &ServerOptions, memory: &Path) -> Outcome {
    let kernels = open_kernels(&args.device, args.manifest.as_deref(), args.catalogue)?;
    let session = match &kernels {
        Ok(compute) => Session::new(compute, &options.session),
        Err(reason) => Session::without_device(reason, &options.session),
    };
    Ok(isolate::answer(
        memory,
        kernels.as_ref().ok(),
        session?,
        &options.session,
    )?)
}

fn server(args: &Args, mut options: ServerOptions) -> Outcome<Server> {
    let compute = match open_kernels(&args.device, args.manifest.as_deref(), args.catalogue)? {
        Ok(compute) => Some(Arc::new(compute)),
        Err(reason) => {
            options.reason = reason;
            None
        }
    };
    Ok(Server::new(compute, options)?)
}

/// The kernels, or why there is no device for them; empty: the library has a message of its own, which clients
/// know. That is reported on stderr too.
pub(super) fn open_kernels(
    device: &DeviceArgs,
    manifest: Option<&Path>,
    has_catalogue: bool,
) -> Outcome<Result<GpuCompute, String>> {
    let error = match device.builder().open() {
        Ok(_) => return kernels(device, manifest, has_catalogue).map(Ok),
        Err(error) => error,
    };
    if !matches!(error.kind(), ErrorKind::NoDevice | ErrorKind::NotAvailable) {
        return Err(error.into());
    }
    eprintln!("{}; runs are refused", error.message());
    let reason = if built_with_cuda() {
        error.message()
    } else {
        ""
    };
    Ok(Err(reason.to_owned()))
}

/// `noop`, `tensor_add`, and what else is asked for.
fn kernels(
    device: &DeviceArgs,
    manifest: Option<&Path>,
    has_catalogue: bool,
) -> Outcome<GpuCompute> {
    let compute = GpuCompute::with_context(&load::context(device)?)?;
    for name in ["noop", "tensor_add"] {
        compute.register_builtin(name, ElementType::F32, 0)?;
    }
    if let Some(path) = manifest {
        let manifest = Manifest::load(path)?;
        // SAFETY: the user who passes --manifest vouches for the code it names.
        unsafe { compute.register_manifest(&manifest, &HostFunctions::new()) }?;
    }
    if has_catalogue {
        let known = compute.kernels();
        for kernel in catalogue()? {
            if !known.contains(&kernel.name) {
                compute.register_builtin(&kernel.name, ElementType::F32, 0)?;
            }
        }
    }
    Ok(compute)
}

fn listen(server: Server, address: &str, as_json: bool) -> Outcome {
    let Some(path) = address
        .strip_prefix("unix:")
        .filter(|path| !path.is_empty())
    else {
        return Err(Failure::usage(format!("--listen {address}: not unix:PATH")));
    };
    let listener = server.listen(path)?;
    let at_signal = listener.stop_handle();
    on_termination(move || at_signal.stop())?;
    let at_end = listener.stop_handle();
    // Ends with the process.
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        at_end.stop();
    });
    if as_json {
        print_json(&serde_json::json!({ "listening": address }))?;
    } else {
        println!("listening on {address}");
    }
    io::stdout().flush()?;
    Ok(listener.run()?)
}

fn on_termination(stop: impl FnMut() + Send + 'static) -> Outcome {
    ctrlc::set_handler(stop)
        .map_err(|error| Failure::new(format!("cannot handle SIGTERM: {error}")))
}

/// Stdin and stdout without buffers of their own.
struct Stdio {
    input: File,
    output: File,
}

impl Read for Stdio {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.input.read(buffer)
    }
}

impl Write for Stdio {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

impl Connection for Stdio {
    fn output(&self) -> Option<BorrowedFd<'_>> {
        Some(self.output.as_fd())
    }
}

fn on_stdio(server: &Server) -> Outcome {
    let own = |fd: io::Result<std::os::fd::OwnedFd>| fd.map(File::from);
    let mut stdio = Stdio {
        input: own(io::stdin().as_fd().try_clone_to_owned())?,
        output: own(io::stdout().as_fd().try_clone_to_owned())?,
    };
    // Held while a frame is answered: a signal waits for the answer.
    let answering = Arc::new(Mutex::new(()));
    let at_signal = Arc::clone(&answering);
    on_termination(move || {
        let _answered = at_signal.lock().unwrap_or_else(PoisonError::into_inner);
        std::process::exit(0);
    })?;
    Ok(server.serve_while(&mut stdio, &|answer| {
        let _answering = answering.lock().unwrap_or_else(PoisonError::into_inner);
        answer()
    })?)
}
