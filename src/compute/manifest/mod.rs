//! Kernels described in a file: modules of device code, and for each kernel its parameters, its launch
//! and its guarantees.
//!
//! The file is JSON of at most 1 MiB, 16 levels and 4,096 items per array, without unknown or duplicate fields.
//! Errors name line and path (`line 12: kernels[2].params[0].shape: …`).
//!
//! ```json
//! {
//!   "manifest": 1,
//!   "modules": [{ "name": "add", "path": "add.cu" }],
//!   "kernels": [
//!     {
//!       "id": 10, "name": "vector_add", "module": "add", "entry": "add<float>",
//!       "params": [
//!         { "name": "a", "kind": "buffer", "dtype": "f32", "shape": ["n"], "access": "read" },
//!         { "name": "b", "kind": "buffer", "dtype": "f32", "shape": ["n"], "access": "read" },
//!         { "name": "c", "kind": "buffer", "dtype": "f32", "shape": ["n"], "access": "write" },
//!         { "name": "n", "kind": "scalar", "dtype": "i32", "min": 0 }
//!       ],
//!       "grid": "max(1, ceil_div(n, 256))", "block": 256
//!     }
//!   ]
//! }
//! ```
//!
//! | Of a module | |
//! |---|---|
//! | `name` | unique name |
//! | `path`, or `source` | a file in the manifest's folder or below, or CUDA C++ as text |
//! | `kind` | `cuda` (default), `ptx`, `cubin`, `fatbin` |
//! | `arch` | for `cuda`: target architecture [default: the device's] |
//! | `blake3` | required digest of the file or the source, 64 hex digits |
//! | `options` | for `cuda`: `standard`, `defines`, `headers` (texts by name), `fast_math`, `ftz`, `prec_sqrt`, `prec_div`, `fmad`, `line_info`, `debug`, `max_registers`, `extras` |
//!
//! | Of a kernel | |
//! |---|---|
//! | `name` | name in the registry |
//! | `id` | its number [default: chosen by the registry]. 1 and 2 are `noop` and `tensor_add` of the catalogue |
//! | `module`, `entry` | its code; `entry` defaults to `name` |
//! | `host` | the name of a CPU function that the program provides |
//! | `builtin`, `type` | instead of all other fields: a kernel of the catalogue, and `f32`, `f16` or `bf16` |
//! | `params` | see below |
//! | `grid`, `block` | one to three expressions; default 1 and 256 |
//! | `threads` | instead of `grid`: total number of threads, in blocks of `block` |
//! | `shared_bytes` | dynamic shared memory per block |
//! | `deterministic` | default `true` |
//! | `budget_ms` | a run that takes longer is an error |
//!
//! | Of a parameter | |
//! |---|---|
//! | `name`, `kind` | `buffer`, `scalar` or `bytes` |
//! | `dtype` | element type of a scalar or buffer: `i8` … `u64`, `f16`, `bf16`, `f32`, `f64` |
//! | `shape` | for a buffer: integers and expressions |
//! | `access` | for a buffer: `read`, `write`, `read_write` (default) |
//! | `layout`, `layout_id` | hints for a buffer: `any`, `row_major`, `column_major`; the number of a custom layout |
//! | `bytes` | for `bytes`: their number |
//! | `min`, `max` | for a scalar: numbers; for an integer also expressions |
//!
//! Expressions are those of the C interface, section 22: integer parameters by name, `+ - * / %`,
//! `ceil_div`, `round_up`, `min`, `max`.
//!
//! ```
//! use worker_cuda::manifest::{HostFunctions, Manifest};
//! use worker_cuda::{CudaContext, GpuArg, GpuCompute};
//!
//! # fn main() -> worker_cuda::Result<()> {
//! let manifest = Manifest::parse(
//!     r#"{ "manifest": 1, "modules": [], "kernels": [{
//!         "name": "double", "host": "double", "params": [
//!             { "name": "x", "kind": "buffer", "dtype": "f32", "shape": ["n"] },
//!             { "name": "n", "kind": "scalar", "dtype": "i32", "min": 0 }] }] }"#,
//!     ".",
//! )?;
//! let hosts = HostFunctions::new().with("double", |call| {
//!     call.slice_mut::<f32>(0)?.iter_mut().for_each(|x| *x *= 2.0);
//!     Ok(())
//! });
//! let compute = GpuCompute::with_context(&CudaContext::host()?)?;
//! // SAFETY: the manifest has no device code.
//! unsafe { compute.register_manifest(&manifest, &hosts) }?;
//! let mut x = compute.device().upload(&[1.0f32, 2.0])?;
//! compute.run("double", &[GpuArg::from(&mut x), 2i32.into()])?;
//! assert_eq!(x.to_vec()?, [2.0, 4.0]);
//! # Ok(())
//! # }
//! ```

mod node;
mod read;
mod register;

use std::path::{Component, Path, PathBuf};

use crate::compute::program::ProgramBuilder;
use crate::compute::registry::{Descriptor, ParamSpec};
use crate::core::error::{Error, ErrorKind, Result};
use crate::ffi;

pub use register::HostFunctions;

/// Maximum size of a module's file.
const MODULE_BYTES_MAX: u64 = 256 << 20;

/// Kind of a module's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModuleKind {
    /// CUDA C++, compiled when it is registered.
    Cuda,
    /// PTX.
    Ptx,
    /// Code of one architecture.
    Cubin,
    /// A container of PTX and cubins.
    Fatbin,
}

/// Where a module's code is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModuleCode {
    /// In a file, relative to the manifest's folder.
    Path(PathBuf),
    /// In the manifest itself.
    Source(String),
}

/// Options for compiling CUDA C++; see [`ProgramBuilder`].
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ModuleOptions {
    standard: Option<String>,
    defines: Vec<String>,
    headers: Vec<(String, String)>,
    extras: Vec<String>,
    fast_math: Option<bool>,
    ftz: Option<bool>,
    prec_sqrt: Option<bool>,
    prec_div: Option<bool>,
    fmad: Option<bool>,
    line_info: Option<bool>,
    debug: Option<bool>,
    max_registers: Option<u32>,
}

/// A module of a manifest.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ManifestModule {
    /// The name.
    pub name: String,
    /// Where the code is stored.
    pub code: ModuleCode,
    /// The kind of the code.
    pub kind: ModuleKind,
    /// Target architecture, if one is given.
    pub arch: Option<String>,
    /// Required digest of the code.
    pub blake3: Option<[u8; 32]>,
    pub(crate) options: ModuleOptions,
}

impl ManifestModule {
    /// Reads the code; [`ErrorKind::Integrity`] if it has another digest.
    pub fn read(&self, folder: &Path) -> Result<Vec<u8>> {
        let bytes = match &self.code {
            ModuleCode::Source(text) => text.clone().into_bytes(),
            ModuleCode::Path(path) => read_file(&folder.join(path), MODULE_BYTES_MAX)?,
        };
        if let Some(expected) = &self.blake3 {
            let found = blake3::hash(&bytes);
            if found.as_bytes() != expected {
                let expected = blake3::Hash::from_bytes(*expected);
                let message = format!(
                    "module '{}': BLAKE3 {} of {} bytes, the manifest has {}",
                    self.name,
                    found.to_hex(),
                    bytes.len(),
                    expected.to_hex()
                );
                return Err(Error::new(ErrorKind::Integrity, message));
            }
        }
        Ok(bytes)
    }

    /// Sets the options on the builder of its source.
    pub(crate) fn configure(&self, mut builder: ProgramBuilder) -> ProgramBuilder {
        let options = &self.options;
        if let Some(arch) = &self.arch {
            builder = builder.architecture(arch);
        }
        if let Some(standard) = &options.standard {
            builder = builder.standard(standard);
        }
        for define in &options.defines {
            builder = builder.define(define);
        }
        for (name, text) in &options.headers {
            builder = builder.header(name, text);
        }
        for extra in &options.extras {
            builder = builder.extra(extra);
        }
        type Switch = fn(ProgramBuilder, bool) -> ProgramBuilder;
        let switches: [(Option<bool>, Switch); 7] = [
            (options.fast_math, ProgramBuilder::fast_math),
            (options.ftz, ProgramBuilder::ftz),
            (options.prec_sqrt, ProgramBuilder::prec_sqrt),
            (options.prec_div, ProgramBuilder::prec_div),
            (options.fmad, ProgramBuilder::fmad),
            (options.line_info, ProgramBuilder::line_info),
            (options.debug, ProgramBuilder::debug),
        ];
        for (value, switch) in switches {
            if let Some(on) = value {
                builder = switch(builder, on);
            }
        }
        if let Some(count) = options.max_registers {
            builder = builder.max_registers(count);
        }
        builder
    }
}

/// Origin of a kernel's code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KernelCode {
    Own {
        /// Index of the module.
        module: Option<usize>,
        entry: String,
        host: Option<String>,
    },
    /// A kernel of the catalogue for elements of a `WCUDA_ARG_…`.
    Ready { name: String, elements: i32 },
}

/// A kernel of a manifest.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ManifestKernel {
    /// The number, if one is given.
    pub id: Option<u32>,
    /// The name in the registry.
    pub name: String,
    /// The name of the module.
    pub module: Option<String>,
    /// The name of the host function.
    pub host: Option<String>,
    /// The canonical signature; "" for a kernel of the catalogue.
    pub signature: String,
    /// 64-bit FNV-1a hash of the signature; 0 for a kernel of the catalogue.
    pub sig_hash: u64,
    /// Whether equal calls give equal bits.
    pub is_deterministic: bool,
    /// Limit of a run in milliseconds; 0: none.
    pub budget_ms: u32,
    pub(crate) code: KernelCode,
    pub(crate) descriptor: Descriptor,
}

/// Kind of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParamKind {
    /// A buffer.
    Buffer,
    /// A scalar.
    Scalar,
    /// A struct passed by value.
    Bytes,
}

/// A parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ManifestParam {
    /// The name.
    pub name: String,
    /// The kind.
    pub kind: ParamKind,
    /// Type of the scalar, or of the buffer's elements, for example "f32"; "" for bytes.
    pub dtype: &'static str,
    /// Dimensions of a buffer, or number of bytes, as expressions.
    pub shape: Vec<String>,
    /// Whether the kernel reads the buffer.
    pub is_read: bool,
    /// Whether the kernel writes the buffer.
    pub is_written: bool,
}

impl ManifestKernel {
    /// The parameters in order; empty for a kernel of the catalogue.
    pub fn params(&self) -> Vec<ManifestParam> {
        let to_public = |param: &ParamSpec| {
            let (kind, of) = match param.kind {
                ffi::WCUDA_ARG_BUFFER => (ParamKind::Buffer, param.dtype),
                ffi::WCUDA_ARG_BYTES => (ParamKind::Bytes, 0),
                scalar => (ParamKind::Scalar, scalar),
            };
            let has = |access: i32| {
                kind == ParamKind::Buffer
                    && (param.access == 0 || param.access & access as u32 != 0)
            };
            ManifestParam {
                name: param.name.clone(),
                kind,
                dtype: usize::try_from(of - 1).map_or("", |index| read::TYPES[index]),
                shape: split_outside_parentheses(&param.shape),
                is_read: has(ffi::WCUDA_ACCESS_READ),
                is_written: has(ffi::WCUDA_ACCESS_WRITE),
            }
        };
        self.descriptor.params.iter().map(to_public).collect()
    }
}

fn split_outside_parentheses(text: &str) -> Vec<String> {
    let mut depth = 0;
    let is_border = |c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth == 0 && c == ','
    };
    let parts = text.split(is_border).map(|part| part.trim().to_owned());
    parts.filter(|part| !part.is_empty()).collect()
}

/// A parsed and validated manifest.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Manifest {
    /// The modules.
    pub modules: Vec<ManifestModule>,
    /// The kernels.
    pub kernels: Vec<ManifestKernel>,
    /// The folder of its files.
    pub folder: PathBuf,
}

impl Manifest {
    /// Parses JSON; `folder` is the folder of its files.
    pub fn parse(json: impl AsRef<[u8]>, folder: impl Into<PathBuf>) -> Result<Self> {
        read::manifest(json.as_ref(), folder.into())
    }

    /// Loads a manifest file, whose modules are in the same folder or below.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = read_file(path, node::BYTES_MAX as u64)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::parse(bytes, folder).map_err(|error| error.with_context(path.display().to_string()))
    }
}

fn read_file(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    use std::io::Read;
    let failed =
        |error: std::io::Error| Error::new(ErrorKind::Io, format!("{}: {error}", path.display()));
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > bytes_max {
        let message = format!("{}: more than {bytes_max} bytes", path.display());
        return Err(Error::new(ErrorKind::LimitExceeded, message));
    }
    Ok(bytes)
}

/// Whether a path stays in the manifest's folder or below it.
fn is_below(path: &Path) -> bool {
    let mut parts = path.components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}
