//! Opens a device, a file and a model, with a progress bar while weights load.

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use worker_cuda::{Backend, CancelHandle, CudaContext, ErrorKind, Gguf, Model, Progress};

use crate::failure::{Failure, Outcome, notice};
use crate::interrupt;
use crate::options::{BackendChoice, DeviceArgs};

/// Opens the device, and reports on stderr if `auto` falls back to the CPU.
pub fn context(args: &DeviceArgs) -> Outcome<CudaContext> {
    let context = args.builder().open()?;
    let info = context.info()?;
    if args.backend == BackendChoice::Auto && info.backend == Backend::Host {
        let reason = info.fallback_reason;
        let threads = info.host_threads;
        notice(&format!(
            "{reason}; computing on the CPU, {threads} threads"
        ));
    }
    Ok(context)
}

/// Opens the file; errors name it.
pub fn gguf(path: &Path) -> Outcome<Gguf> {
    Gguf::open(path).map_err(|error| {
        let malformed = error.kind() == ErrorKind::Malformed;
        let failure = Failure::from(error).in_file(path);
        if malformed {
            failure.hint("is it a complete GGUF file?")
        } else {
            failure
        }
    })
}

/// Opens the device and loads the weights; Ctrl-C cancels. With `auto`, a model that the GPU cannot load is
/// loaded on the CPU.
pub fn model(args: &DeviceArgs, gguf: &Gguf) -> Outcome<Model> {
    let context = context(args)?;
    match load_weights(&context, gguf)? {
        Err(error)
            if error.kind() == ErrorKind::NotAvailable && args.backend == BackendChoice::Auto =>
        {
            notice(&format!("{error}; computing on the CPU"));
            let host = DeviceArgs {
                backend: BackendChoice::Host,
                device: 0,
                ..args.clone()
            };
            load_on(&host.builder().open()?, gguf)
        }
        loaded => Ok(loaded?),
    }
}

/// Loads the weights to a device that is open; Ctrl-C cancels.
pub fn load_on(context: &CudaContext, gguf: &Gguf) -> Outcome<Model> {
    Ok(load_weights(context, gguf)??)
}

/// The error outside is that of Ctrl-C.
fn load_weights(context: &CudaContext, gguf: &Gguf) -> Outcome<worker_cuda::Result<Model>> {
    let cancel = CancelHandle::new()?;
    interrupt::watch_load(&cancel);
    let bar = bar();
    let loaded = Model::builder(context, gguf)
        .cancel(&cancel)
        .progress(
            |Progress {
                 done_bytes,
                 total_bytes,
                 ..
             }| {
                bar.set_length(total_bytes);
                bar.set_position(done_bytes);
                ControlFlow::Continue(())
            },
        )
        .load();
    bar.finish_and_clear();
    interrupt::end_load()?;
    Ok(loaded.map_err(|error| error.with_context(device_name(context))))
}

/// "the CPU" or "CUDA device 0", for errors.
pub fn device_name(context: &CudaContext) -> String {
    match context.info() {
        Ok(info) if info.backend == Backend::Cuda => format!("CUDA device {}", info.ordinal),
        Ok(info) if info.backend == Backend::Host => "the CPU".into(),
        _ => "the device".into(),
    }
}

fn bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("loading {bar:40} {bytes}/{total_bytes} {bytes_per_sec}");
    ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The context length that a file's model was trained for; 0 if unknown.
pub fn trained_context(gguf: &Gguf) -> Outcome<u32> {
    let architecture = gguf.str("general.architecture")?.unwrap_or("");
    Ok(gguf
        .u32(&format!("{architecture}.context_length"))?
        .unwrap_or(0))
}
