//! `zctl exec`: runs a guest that is a shared object on stdin, stdout and stderr.

use std::io::{self, BufWriter};
use std::path::PathBuf;

use libloading::{Library, Symbol};
use worker_cuda::GpuCompute;
use worker_cuda::zctl::{
    Chunks, Cloak, ForeignModules, Guest, GuestEntry, Handles, Host, Recorder, Session,
    SessionOptions, Shape,
};

use super::serve::open_kernels;
use crate::failure::{Failure, Outcome};
use crate::options::DeviceArgs;

const TRUST: &str = "The guest, a shared object with lembeh_handle and zprog_heap_base_value

It runs as code of this process and can do what this process can: run only guests that you trust";

/// The guest, and how it was compiled.
#[derive(clap::Args)]
pub struct GuestArgs {
    /// The guest, a shared object with lembeh_handle and zprog_heap_base_value
    #[arg(value_name = "GUEST.so", long_help = TRUST)]
    guest: PathBuf,
    /// Shape of the guest's ctl function
    #[arg(long, value_name = "1|2|3", default_value_t = 2,
          value_parser = clap::value_parser!(u8).range(1..=3))]
    shape: u8,
    /// Numbers of the guest's handles
    #[arg(long, value_enum, value_name = "pack|abi|guide", default_value_t)]
    handles: Numbering,
}

#[derive(Clone, Copy, Default, clap::ValueEnum)]
enum Numbering {
    /// in 1, out 2, log 3, ctl 4
    Pack,
    /// in 0, out 1, log 2, ctl 3
    #[default]
    Abi,
    /// in 0, out 1, log 2, and no handle for ctl
    Guide,
}

#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    #[command(flatten)]
    guest: GuestArgs,
    /// How many bytes reads of stdin give: all-at-once, one-byte, powers-of-two, crlf-adversary or seeded-random[:SEED]
    #[arg(long, value_name = "NAME[:SEED]", default_value = "all-at-once",
          value_parser = |text: &str| text.parse::<Chunks>())]
    chunks: Chunks,
    /// No kernels: the list of capabilities is empty, every other request is unknown
    #[arg(long, conflicts_with_all = ["manifest", "allow"])]
    no_kernels: bool,
    /// Besides the catalogue, the kernels of this manifest; runs the code it names
    #[arg(long, value_name = "FILE")]
    pub manifest: Option<PathBuf>,
    /// Run only the kernels with these ids
    #[arg(long, value_name = "ID,...", value_delimiter = ',')]
    allow: Option<Vec<u32>>,
    /// Milliseconds that a run may take
    #[arg(long, value_name = "N", default_value_t = 30_000,
          value_parser = clap::value_parser!(u32).range(1..))]
    budget_ms: u32,
    /// Also run kernels that may give other bits for equal calls
    #[arg(long)]
    allow_non_deterministic: bool,
    /// The guest may load and run device code of its own
    #[arg(long)]
    allow_modules: bool,
    #[command(flatten)]
    pub device: DeviceArgs,
}

pub fn run(args: &Args) -> Outcome {
    let kernels = args.kernels()?;
    args.run_guest(kernels.as_ref(), None)
}

/// The kernels that a guest finds, or why it finds none.
pub type Kernels = Result<GpuCompute, String>;

impl Args {
    /// None where no session is wanted.
    pub fn kernels(&self) -> Outcome<Option<Kernels>> {
        if self.no_kernels {
            return Ok(None);
        }
        open_kernels(&self.device, self.manifest.as_deref(), true).map(Some)
    }

    /// Runs the guest on stdin, stdout and stderr.
    pub fn run_guest(&self, kernels: Option<&Kernels>, recorder: Option<Recorder<'_>>) -> Outcome {
        let loaded = self.guest.load()?;
        let output = BufWriter::new(io::stdout().lock());
        let mut cloak = Cloak::new(io::stdin().lock(), output, io::stderr())
            .with_handles(loaded.handles)
            .with_chunks(self.chunks.clone());
        if let Some(kernels) = kernels {
            cloak = cloak.with_session(self.session(kernels, recorder.as_ref())?);
        }
        if let Some(recorder) = recorder {
            cloak = cloak.with_recorder(recorder);
        }
        let ran = loaded.run(&mut cloak);
        cloak.finish()?;
        ran
    }

    fn session(&self, kernels: &Kernels, recorder: Option<&Recorder<'_>>) -> Outcome<Session> {
        let options = SessionOptions {
            budget_ms: self.budget_ms,
            allowed: self.allow.clone(),
            permits_non_deterministic: self.allow_non_deterministic,
            // SAFETY: whoever starts the command trusts its guests, by a flag that says what they can reach.
            permits_modules: self
                .allow_modules
                .then(|| unsafe { ForeignModules::permit() }),
            ..SessionOptions::default()
        };
        Ok(match (kernels, recorder) {
            (Ok(compute), Some(recorder)) => recorder.session(compute, &options)?,
            (Ok(compute), None) => Session::new(compute, &options)?,
            (Err(reason), _) => Session::without_device(reason, &options)?,
        })
    }
}

/// The guest's code, which stays loaded.
pub struct Loaded {
    _library: Library,
    pub guest: Guest,
    pub handles: Handles,
}

impl GuestArgs {
    pub fn load(&self) -> Outcome<Loaded> {
        let describe = |error: libloading::Error| {
            Failure::new(format!("{}: {}", self.guest.display(), cause(&error)))
        };
        // A name without a folder would be looked for in those of the system.
        let path =
            std::path::absolute(&self.guest).map_err(|error| Failure::file(&self.guest, &error))?;
        // SAFETY: the user who passes the guest vouches for its code.
        let library = unsafe { Library::new(path) }.map_err(describe)?;
        // SAFETY: these are the types that the two names have.
        let (entry, heap_base): (
            Symbol<'_, GuestEntry>,
            Symbol<'_, unsafe extern "C" fn() -> u32>,
        ) = unsafe {
            (
                library.get(b"lembeh_handle\0").map_err(describe)?,
                library.get(b"zprog_heap_base_value\0").map_err(describe)?,
            )
        };
        let guest = Guest {
            entry: *entry,
            // SAFETY: as above.
            heap_base: unsafe { heap_base() },
            shape: match self.shape {
                1 => Shape::One,
                2 => Shape::Two,
                _ => Shape::Three,
            },
        };
        Ok(Loaded {
            _library: library,
            guest,
            handles: self.handles(),
        })
    }

    fn handles(&self) -> Handles {
        match self.handles {
            Numbering::Pack => Handles::Pack,
            Numbering::Abi => Handles::Abi,
            Numbering::Guide => Handles::Guide,
        }
    }
}

/// The loader's own words, without the path, which the failure names.
fn cause(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

impl Loaded {
    pub fn run(&self, host: &mut dyn Host) -> Outcome {
        // SAFETY: the user who passes the guest and its shape vouches for both.
        let ran = unsafe { self.guest.run(host) };
        ran.map_err(|trap| Failure::new(trap.to_string()))
    }
}
