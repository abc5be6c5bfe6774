//! CUDA C++ compiled at run time, and an on-disk cache of the results.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::core::context::CudaContext;
use crate::core::error::{Error, ErrorKind, Result, call};
use crate::core::native_text::{as_bytes, as_native, as_str, bytes_as_native, fixed_text};
use crate::ffi;

/// Kind of device code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CodeKind {
    /// Text that the driver translates for its device when it is loaded.
    Ptx,
    /// Code of one architecture.
    Cubin,
    /// A container of PTX and cubins for several architectures.
    Fatbin,
}

impl CodeKind {
    /// Determines the kind from the header or the first token. Truncated code, source, and anything else is
    /// [`ErrorKind::Malformed`].
    pub fn of(code: &[u8]) -> Result<Self> {
        let mut kind = 0;
        // SAFETY: `code` is valid for its length.
        call(|error| unsafe {
            ffi::wcuda_code_kind_get(code_pointer(code), code.len() as u64, &mut kind, error)
        })?;
        Self::from_native(kind)
    }

    fn from_native(kind: i32) -> Result<Self> {
        match kind {
            ffi::WCUDA_CODE_PTX => Ok(Self::Ptx),
            ffi::WCUDA_CODE_CUBIN => Ok(Self::Cubin),
            ffi::WCUDA_CODE_FATBIN => Ok(Self::Fatbin),
            other => {
                let message = format!("code of the unknown kind {other}");
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }
}

/// A pointer that is never null, also for no bytes.
pub(crate) fn code_pointer(code: &[u8]) -> *const std::ffi::c_void {
    code.as_ptr().cast()
}

/// A folder of compiled programs, shared by all processes of this user. Cheap to clone.
///
/// ```
/// use worker_cuda::KernelCache;
/// # fn main() -> worker_cuda::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("wcuda-doc-cache-{}", std::process::id()));
/// let cache = KernelCache::open(&folder, 64 << 20)?;
/// assert_eq!(cache.stats()?.entries, 0);
/// # drop(cache);
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct KernelCache(Arc<CacheHandle>);

#[derive(Debug)]
struct CacheHandle(ffi::wcuda_kernel_cache);

impl Drop for CacheHandle {
    fn drop(&mut self) {
        // SAFETY: legal on any thread.
        unsafe { ffi::wcuda_kernel_cache_close(self.0) }
    }
}

/// Counters of a cache since it was opened, and the contents of its folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct CacheStats {
    pub hits: u64,
    pub misses: u64,
    /// Files that were not valid entries; they count as misses and were removed.
    pub damaged: u64,
    pub stores: u64,
    pub store_failures: u64,
    pub evictions: u64,
    /// Programs that may read files, and are compiled every time.
    pub bypasses: u64,
    pub entries: u64,
    pub entry_bytes: u64,
}

impl KernelCache {
    /// Opens a folder, and creates it if it is missing. All entries together have at most `max_bytes`. A folder that
    /// other users can write is refused.
    pub fn open(folder: impl AsRef<Path>, max_bytes: u64) -> Result<Self> {
        use std::os::unix::ffi::OsStrExt;
        let folder = bytes_as_native(folder.as_ref().as_os_str().as_bytes());
        let mut cache = ffi::wcuda_kernel_cache::zeroed();
        // SAFETY: the path is valid for the call.
        call(|error| unsafe {
            ffi::wcuda_kernel_cache_open(folder, max_bytes, &mut cache, error)
        })?;
        Ok(Self(Arc::new(CacheHandle(cache))))
    }

    /// Counts and sizes.
    pub fn stats(&self) -> Result<CacheStats> {
        let mut stats = ffi::wcuda_kernel_cache_stats::init();
        // SAFETY: `stats` is valid and sized.
        call(|error| unsafe { ffi::wcuda_kernel_cache_stats_get(self.0.0, &mut stats, error) })?;
        Ok(CacheStats {
            hits: stats.hit_count,
            misses: stats.miss_count,
            damaged: stats.damaged_count,
            stores: stats.store_count,
            store_failures: stats.store_failure_count,
            evictions: stats.evicted_count,
            bypasses: stats.bypass_count,
            entries: stats.entry_count,
            entry_bytes: stats.entry_bytes,
        })
    }

    /// Removes all entries.
    pub fn clear(&self) -> Result<()> {
        // SAFETY: legal on any thread.
        call(|error| unsafe { ffi::wcuda_kernel_cache_clear(self.0.0, error) })
    }
}

/// The compiler's output for a program that failed; [`Error::compile_log`] finds it.
#[derive(Debug)]
pub struct CompileLog(String);

impl fmt::Display for CompileLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CompileLog {}

impl Error {
    /// All diagnostics of a failed compilation; the message contains the first.
    pub fn compile_log(&self) -> Option<&str> {
        let source = std::error::Error::source(self)?;
        Some(&source.downcast_ref::<CompileLog>()?.0)
    }
}

/// How to compile; see [`Program::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is compiled until `compile` is called"]
pub struct ProgramBuilder {
    source: String,
    name: String,
    architecture: String,
    context: Option<CudaContext>,
    standard: String,
    defines: Vec<String>,
    headers: Vec<(String, String)>,
    include_folders: Vec<PathBuf>,
    expressions: Vec<String>,
    extras: Vec<String>,
    flags: u32,
    flush_denormals: i32,
    precise_sqrt: i32,
    precise_division: i32,
    fuse_multiply_add: i32,
    max_registers: u32,
    library_folder: PathBuf,
    cache: Option<KernelCache>,
}

fn choice(on: bool) -> i32 {
    if on {
        ffi::WCUDA_CHOICE_ON
    } else {
        ffi::WCUDA_CHOICE_OFF
    }
}

impl ProgramBuilder {
    /// The file's name in diagnostics.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// "sm_90a" for code of that architecture, "compute_90" for PTX. Required without a device.
    pub fn architecture(mut self, architecture: impl Into<String>) -> Self {
        self.architecture = architecture.into();
        self
    }

    /// Compiles for this context's device if no architecture is named.
    pub fn for_device(mut self, context: &CudaContext) -> Self {
        self.context = Some(context.clone());
        self
    }

    /// "c++11", "c++14", "c++17" or "c++20".
    pub fn standard(mut self, standard: impl Into<String>) -> Self {
        self.standard = standard.into();
        self
    }

    /// "NAME" or "NAME=value".
    pub fn define(mut self, define: impl Into<String>) -> Self {
        self.defines.push(define.into());
        self
    }

    /// A header that exists only in memory.
    pub fn header(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.headers.push((name.into(), text.into()));
        self
    }

    /// A folder to search for headers. Such programs bypass the cache.
    pub fn include_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.include_folders.push(folder.into());
        self
    }

    /// A kernel that is an instance of a template, for example `scale<float>`.
    pub fn expression(mut self, expression: impl Into<String>) -> Self {
        self.expressions.push(expression.into());
        self
    }

    /// An option passed to NVRTC unchanged.
    pub fn extra(mut self, option: impl Into<String>) -> Self {
        self.extras.push(option.into());
        self
    }

    fn flag(mut self, flag: u32, on: bool) -> Self {
        self.flags = if on {
            self.flags | flag
        } else {
            self.flags & !flag
        };
        self
    }

    /// Fast and less exact functions, denormals flushed to zero, approximate division.
    pub fn fast_math(self, on: bool) -> Self {
        self.flag(ffi::WCUDA_PROGRAM_FAST_MATH, on)
    }

    /// Line numbers for profilers.
    pub fn line_info(self, on: bool) -> Self {
        self.flag(ffi::WCUDA_PROGRAM_LINE_INFO, on)
    }

    /// Code for debuggers.
    pub fn debug(self, on: bool) -> Self {
        self.flag(ffi::WCUDA_PROGRAM_DEBUG, on)
    }

    /// Code for a linker, which cannot be loaded.
    pub fn relocatable(self, on: bool) -> Self {
        self.flag(ffi::WCUDA_PROGRAM_RELOCATABLE, on)
    }

    /// Functions without an annotation are device functions.
    pub fn default_device(self, on: bool) -> Self {
        self.flag(ffi::WCUDA_PROGRAM_DEFAULT_DEVICE, on)
    }

    /// Flushes denormals to zero.
    pub fn ftz(mut self, on: bool) -> Self {
        self.flush_denormals = choice(on);
        self
    }

    /// Rounds square roots correctly.
    pub fn prec_sqrt(mut self, on: bool) -> Self {
        self.precise_sqrt = choice(on);
        self
    }

    /// Rounds divisions correctly.
    pub fn prec_div(mut self, on: bool) -> Self {
        self.precise_division = choice(on);
        self
    }

    /// Allows a product and a sum to become one operation.
    pub fn fmad(mut self, on: bool) -> Self {
        self.fuse_multiply_add = choice(on);
        self
    }

    /// Maximum of registers per thread; 0: no limit.
    pub fn max_registers(mut self, count: u32) -> Self {
        self.max_registers = count;
        self
    }

    /// The folder that contains `libnvrtc.so.13`, if the system's loader does not find it.
    pub fn library_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.library_folder = folder.into();
        self
    }

    /// The cache for the result.
    pub fn cache(mut self, cache: &KernelCache) -> Self {
        self.cache = Some(cache.clone());
        self
    }

    /// Compiles the program. An error's message is the first diagnostic; [`Error::compile_log`] has all.
    pub fn compile(self) -> Result<Program> {
        use std::os::unix::ffi::OsStrExt;
        let texts = |list: &[String]| list.iter().map(|text| as_native(text)).collect::<Vec<_>>();
        let path = |path: &Path| bytes_as_native(path.as_os_str().as_bytes());
        let (defines, expressions) = (texts(&self.defines), texts(&self.expressions));
        let extras = texts(&self.extras);
        let folders: Vec<_> = self.include_folders.iter().map(|each| path(each)).collect();
        let headers: Vec<_> = self
            .headers
            .iter()
            .map(|(name, text)| ffi::wcuda_program_header {
                struct_size: size_of::<ffi::wcuda_program_header>() as u32,
                reserved: 0,
                name: as_native(name),
                text: as_native(text),
            })
            .collect();
        let mut options = ffi::wcuda_program_options::init();
        options.flags = self.flags;
        options.source = as_native(&self.source);
        options.name = as_native(&self.name);
        options.architecture = as_native(&self.architecture);
        if let Some(context) = &self.context {
            options.context = context.handle();
        }
        options.standard = as_native(&self.standard);
        (options.defines, options.define_count) = (defines.as_ptr(), defines.len() as u64);
        (options.headers, options.header_count) = (headers.as_ptr(), headers.len() as u64);
        options.include_folders = folders.as_ptr();
        options.include_folder_count = folders.len() as u64;
        options.expressions = expressions.as_ptr();
        options.expression_count = expressions.len() as u64;
        (options.extras, options.extra_count) = (extras.as_ptr(), extras.len() as u64);
        options.flush_denormals = self.flush_denormals;
        options.precise_sqrt = self.precise_sqrt;
        options.precise_division = self.precise_division;
        options.fuse_multiply_add = self.fuse_multiply_add;
        options.max_registers = self.max_registers;
        options.library_folder = path(&self.library_folder);
        if let Some(cache) = &self.cache {
            options.cache = cache.0.0;
        }
        let mut program = Program(ffi::wcuda_program::zeroed());
        // SAFETY: all that the options point to lives until the end of this function.
        call(|error| unsafe { ffi::wcuda_program_create(&options, &mut program.0, error) })?;
        // SAFETY: nobody else has the program.
        call(|error| unsafe { ffi::wcuda_program_compile(program.0, error) }).map_err(|error| {
            match program.log() {
                Ok(log) if !log.is_empty() => error.with_source(Box::new(CompileLog(log))),
                _ => error,
            }
        })?;
        Ok(program)
    }
}

/// How the cache was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheResult {
    /// No cache was set.
    None,
    /// The code was in the cache.
    Hit,
    /// The program was compiled, and stored if possible.
    Miss,
    /// The program was compiled, because its includes may change.
    Bypassed,
}

/// Properties of a compiled program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProgramInfo {
    /// PTX or a cubin.
    pub kind: CodeKind,
    /// Version of NVRTC, major * 1000 + minor * 10.
    pub nvrtc_version: i32,
    /// Duration of the compilation.
    pub compile_ns: u64,
    /// The architecture that it was compiled for.
    pub architecture: String,
    /// How the cache was used.
    pub cache: CacheResult,
}

/// Compiled CUDA C++.
///
/// ```no_run
/// # fn main() -> worker_cuda::Result<()> {
/// let program = worker_cuda::Program::builder(
///     "template <class T> __global__ void scale(T* x, T by) { x[threadIdx.x] *= by; }",
/// )
/// .architecture("sm_90a")
/// .expression("scale<float>")
/// .compile()?;
/// println!("{} bytes", program.code()?.len());
/// # Ok(())
/// # }
/// ```
///
/// ```
/// use worker_cuda::{ErrorKind, Program};
/// # fn main() -> worker_cuda::Result<()> {
/// let source = "template <class T> __global__ void fill(T* x, T value) { x[threadIdx.x] = value; }";
/// let program = Program::builder(source)
///     .architecture("sm_90a")
///     .expression("fill<float>")
///     .compile();
/// match program {
///     Ok(program) => println!("{}", program.name_of("fill<float>")?),
///     Err(error) => assert_eq!(error.kind(), ErrorKind::NotAvailable), // no NVRTC here
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Program(ffi::wcuda_program);

impl Program {
    /// Builds a program from CUDA C++.
    pub fn builder(source: impl Into<String>) -> ProgramBuilder {
        ProgramBuilder {
            source: source.into(),
            name: String::new(),
            architecture: String::new(),
            context: None,
            standard: String::new(),
            defines: Vec::new(),
            headers: Vec::new(),
            include_folders: Vec::new(),
            expressions: Vec::new(),
            extras: Vec::new(),
            flags: 0,
            flush_denormals: 0,
            precise_sqrt: 0,
            precise_division: 0,
            fuse_multiply_add: 0,
            max_registers: 0,
            library_folder: PathBuf::new(),
            cache: None,
        }
    }

    /// The code; PTX is text without a final NUL.
    pub fn code(&self) -> Result<&[u8]> {
        let (mut code, mut bytes) = (std::ptr::null(), 0);
        // SAFETY: both outputs are valid; the code is borrowed from the program, which `self` keeps.
        call(|error| unsafe { ffi::wcuda_program_code_get(self.0, &mut code, &mut bytes, error) })?;
        let text = ffi::wcuda_string {
            data: code.cast(),
            bytes,
        };
        // SAFETY: as above.
        Ok(unsafe { as_bytes(text) })
    }

    /// The compiler's output: warnings.
    pub fn log(&self) -> Result<String> {
        let mut log = ffi::wcuda_string::zeroed();
        // SAFETY: `log` is valid.
        call(|error| unsafe { ffi::wcuda_program_log_get(self.0, &mut log, error) })?;
        // SAFETY: borrowed from the program, which lives.
        Ok(String::from_utf8_lossy(unsafe { as_bytes(log) }).into_owned())
    }

    /// The name in the code of a requested expression.
    pub fn name_of(&self, expression: &str) -> Result<&str> {
        let mut name = ffi::wcuda_string::zeroed();
        // SAFETY: `name` is valid.
        call(|error| unsafe {
            ffi::wcuda_program_name_get(self.0, as_native(expression), &mut name, error)
        })?;
        // SAFETY: borrowed from the program, which `self` keeps.
        unsafe { as_str(name) }
    }

    /// How the program was compiled.
    pub fn info(&self) -> Result<ProgramInfo> {
        let mut info = ffi::wcuda_program_info::init();
        // SAFETY: `info` is valid and sized.
        call(|error| unsafe { ffi::wcuda_program_info_get(self.0, &mut info, error) })?;
        Ok(ProgramInfo {
            kind: CodeKind::from_native(info.code_kind)?,
            nvrtc_version: info.nvrtc_version,
            compile_ns: info.compile_ns,
            architecture: fixed_text(&info.architecture),
            cache: match info.cache_result {
                ffi::WCUDA_CACHE_HIT => CacheResult::Hit,
                ffi::WCUDA_CACHE_MISS => CacheResult::Miss,
                ffi::WCUDA_CACHE_BYPASSED => CacheResult::Bypassed,
                _ => CacheResult::None,
            },
        })
    }

    pub(crate) fn handle(&self) -> ffi::wcuda_program {
        self.0
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: nothing borrowed from it is left; id 0 is legal.
        unsafe { ffi::wcuda_program_destroy(self.0) }
    }
}
