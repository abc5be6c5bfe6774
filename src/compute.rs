//! A caller's own kernels: registered with a signature, as device code, as a host function, or as both,
//! and run with checked arguments.

use std::any::TypeId;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::callback::ParkedPanic;
use crate::catalogue::ElementType;
use crate::context::CudaContext;
use crate::device::Backend;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi;
use crate::memory::{DeviceRepr, SafeCudaPtr};
use crate::module::{CudaFunction, CudaModule, Dim3, GpuArg, LaunchConfig, Value};
use crate::native_text::as_native;
use crate::program::{KernelCache, Program, ProgramBuilder};
use crate::registry::{Descriptor, ParamSpec, RegisteredKernel, Registry, scalar_bytes};

/// A device to compute on: memory up and down, in one object.
#[derive(Clone, Debug)]
pub struct GpuDevice {
    context: CudaContext,
}

impl GpuDevice {
    /// CUDA device `ordinal`, and nothing else in its place.
    pub fn new(ordinal: i32) -> Result<Self> {
        Ok(Self::with_context(&CudaContext::new(ordinal)?))
    }

    /// On a context of the caller's, of either backend.
    pub fn with_context(context: &CudaContext) -> Self {
        Self {
            context: context.clone(),
        }
    }

    /// The context behind it.
    pub fn context(&self) -> &CudaContext {
        &self.context
    }

    /// A new buffer with these values.
    pub fn upload<T: DeviceRepr>(&self, values: &[T]) -> Result<SafeCudaPtr<T>> {
        self.context.alloc_from(values)
    }

    /// All values of a buffer.
    pub fn download<T: DeviceRepr>(&self, buffer: &SafeCudaPtr<T>) -> Result<Vec<T>> {
        buffer.to_vec()
    }

    /// A new buffer of `len` elements, contents undefined.
    pub fn allocate<T: DeviceRepr>(&self, len: usize) -> Result<SafeCudaPtr<T>> {
        self.context.alloc(len)
    }
}

/// Launches kernels of PTX; each text is loaded once.
#[derive(Debug)]
pub struct KernelLauncher {
    context: CudaContext,
    modules: Mutex<HashMap<String, CudaModule>>,
}

impl KernelLauncher {
    /// On a context.
    pub fn new(context: &CudaContext) -> Self {
        Self {
            context: context.clone(),
            modules: Mutex::default(),
        }
    }

    /// Loads the module unless it has been, and queues the kernel.
    ///
    /// # Safety
    /// As for [`CudaFunction::launch`].
    pub unsafe fn load_and_launch_ptx(
        &self,
        ptx: &str,
        kernel_name: &str,
        grid: impl Into<Dim3>,
        block: impl Into<Dim3>,
        args: &[GpuArg<'_>],
    ) -> Result<()> {
        let module = {
            let mut modules = lock(&self.modules);
            match modules.get(ptx) {
                Some(module) => module.clone(),
                None => {
                    let module = CudaModule::load_ptx(&self.context, ptx)?;
                    modules.insert(ptx.to_owned(), module.clone());
                    module
                }
            }
        };
        let function = module.get_function(kernel_name)?;
        // SAFETY: by this function's contract.
        unsafe { function.launch(&LaunchConfig::new(grid, block), args) }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The kind that arguments of this type have.
fn kind_of<T: DeviceRepr>() -> i32 {
    let id = TypeId::of::<T>();
    let kinds = [
        (TypeId::of::<i8>(), ffi::WCUDA_ARG_I8),
        (TypeId::of::<u8>(), ffi::WCUDA_ARG_U8),
        (TypeId::of::<i16>(), ffi::WCUDA_ARG_I16),
        (TypeId::of::<u16>(), ffi::WCUDA_ARG_U16),
        (TypeId::of::<i32>(), ffi::WCUDA_ARG_I32),
        (TypeId::of::<u32>(), ffi::WCUDA_ARG_U32),
        (TypeId::of::<i64>(), ffi::WCUDA_ARG_I64),
        (TypeId::of::<u64>(), ffi::WCUDA_ARG_U64),
        (TypeId::of::<f32>(), ffi::WCUDA_ARG_F32),
        (TypeId::of::<f64>(), ffi::WCUDA_ARG_F64),
    ];
    kinds
        .iter()
        .find(|(each, _)| *each == id)
        .map_or(0, |(_, kind)| *kind)
}

/// One factor of an extent: a number, or an expression over integer parameters ("n",
/// "ceil_div(n, 32)"; section 22 of the C interface).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dim {
    /// So many.
    Count(u64),
    /// As many as this says.
    Named(String),
}

impl From<u64> for Dim {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<&str> for Dim {
    fn from(name: &str) -> Self {
        Self::Named(name.to_owned())
    }
}

/// The factors as one expression.
fn extent_text(extent: impl IntoIterator<Item = Dim>) -> String {
    let factors: Vec<_> = extent
        .into_iter()
        .map(|dim| match dim {
            Dim::Count(count) => count.to_string(),
            Dim::Named(name) => format!("({name})"),
        })
        .collect();
    factors.join("*")
}

pub(crate) type HostBody = Box<dyn Fn(&HostCall<'_>) -> Result<()> + Send + Sync>;

#[derive(Clone, Debug)]
enum DeviceCode {
    Source(String),
    Binary(Vec<u8>),
}

/// A kernel as it is registered: its name, what its parameters are, and what runs it.
#[must_use = "nothing happens until it is registered"]
pub struct KernelSpec {
    descriptor: Descriptor,
    entry: Option<String>,
    device: Option<DeviceCode>,
    host: Option<HostBody>,
}

impl KernelSpec {
    /// `name` is that of the kernel in its device code (with C linkage, or an expression such as
    /// `scale<float>`), unless [`KernelSpec::entry`] says another.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            descriptor: Descriptor {
                name: name.into(),
                ..Descriptor::default()
            },
            entry: None,
            device: None,
            host: None,
        }
    }

    /// Its name in the device code.
    pub fn entry(mut self, entry: impl Into<String>) -> Self {
        self.entry = Some(entry.into());
        self
    }

    /// Its number, at least 3; else one is given.
    pub fn id(mut self, id: u32) -> Self {
        self.descriptor.id = id;
        self
    }

    /// Equal calls may give other bits.
    pub fn non_deterministic(mut self) -> Self {
        self.descriptor.flags |= ffi::WCUDA_KERNEL_NON_DETERMINISTIC;
        self
    }

    /// A run that takes longer is [`ErrorKind::Timeout`].
    pub fn budget_ms(mut self, budget_ms: u32) -> Self {
        self.descriptor.budget_ms = budget_ms;
        self
    }

    fn buffer<T: DeviceRepr>(
        mut self,
        name: &str,
        access: i32,
        extent: impl IntoIterator<Item = Dim>,
    ) -> Self {
        self.descriptor.params.push(ParamSpec {
            name: name.to_owned(),
            kind: ffi::WCUDA_ARG_BUFFER,
            dtype: kind_of::<T>(),
            access: access as u32,
            shape: extent_text(extent),
            ..ParamSpec::default()
        });
        self
    }

    /// The next parameter is memory that is read: the product of `extent` elements of it.
    pub fn read<T: DeviceRepr>(self, name: &str, extent: impl IntoIterator<Item = Dim>) -> Self {
        self.buffer::<T>(name, ffi::WCUDA_ACCESS_READ, extent)
    }

    /// The next parameter is memory that is written, and perhaps read.
    pub fn write<T: DeviceRepr>(self, name: &str, extent: impl IntoIterator<Item = Dim>) -> Self {
        let access = ffi::WCUDA_ACCESS_READ | ffi::WCUDA_ACCESS_WRITE;
        self.buffer::<T>(name, access, extent)
    }

    /// The next parameter is a number.
    pub fn scalar<T: DeviceRepr>(mut self, name: &str) -> Self {
        self.descriptor.params.push(ParamSpec {
            name: name.to_owned(),
            kind: kind_of::<T>(),
            ..ParamSpec::default()
        });
        self
    }

    /// Bounds of the parameter before, a number: both may be given, as expressions over integer
    /// parameters for an integer, as numbers for an `f32` or `f64`; "" is no bound.
    pub fn within(mut self, min: impl ToString, max: impl ToString) -> Self {
        if let Some(param) = self.descriptor.params.last_mut() {
            (param.min, param.max) = (min.to_string(), max.to_string());
        }
        self
    }

    /// [`GpuCompute::run`] starts a thread for each of so many, 256 a block. One block without this.
    pub fn threads(mut self, extent: impl IntoIterator<Item = Dim>) -> Self {
        self.descriptor.threads = extent_text(extent);
        self
    }

    /// The blocks and the threads of a block that [`GpuCompute::run`] starts, in place of
    /// [`KernelSpec::threads`]: x, y, z as expressions, "" for 1.
    pub fn launch(mut self, grid: [&str; 3], block: [&str; 3]) -> Self {
        self.descriptor.grid = grid.map(str::to_owned);
        self.descriptor.block = block.map(str::to_owned);
        self
    }

    /// Dynamic shared memory of a block, as an expression.
    pub fn shared_bytes(mut self, bytes: impl ToString) -> Self {
        self.descriptor.shared_bytes = bytes.to_string();
        self
    }

    /// What runs on a host context. It does the work of all threads.
    pub fn host(
        mut self,
        body: impl Fn(&HostCall<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.host = Some(Box::new(body));
        self
    }

    /// CUDA C++ that runs on CUDA contexts, compiled when it is registered.
    ///
    /// # Safety
    /// Whatever the numbers passed, the kernel touches no more of its memory than the extents say, writes
    /// only what is declared as written, and its parameters have the declared types.
    pub unsafe fn source(mut self, source: impl Into<String>) -> Self {
        self.device = Some(DeviceCode::Source(source.into()));
        self
    }

    /// PTX, a cubin or a fatbin in place of source.
    ///
    /// # Safety
    /// As for [`KernelSpec::source`].
    pub unsafe fn code(mut self, code: impl Into<Vec<u8>>) -> Self {
        self.device = Some(DeviceCode::Binary(code.into()));
        self
    }
}

impl fmt::Debug for KernelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelSpec")
            .field("name", &self.descriptor.name)
            .field("params", &self.descriptor.params)
            .field("has_host", &self.host.is_some())
            .finish_non_exhaustive()
    }
}

/// What a host function is given: the shape of the launch, and its arguments by index.
pub struct HostCall<'a> {
    launch: &'a ffi::wcuda_launch,
    args: &'a [ffi::wcuda_host_argument],
    params: &'a [ParamSpec],
    /// Memory that has been borrowed to be written, which happens once a call.
    taken: RefCell<Vec<bool>>,
}

impl<'a> HostCall<'a> {
    /// Blocks: x, y, z.
    pub fn grid(&self) -> [u32; 3] {
        self.launch.grid
    }

    /// Threads of a block.
    pub fn block(&self) -> [u32; 3] {
        self.launch.block
    }

    fn arg(&self, index: usize) -> Result<(&'a ffi::wcuda_host_argument, &'a ParamSpec)> {
        match (self.args.get(index), self.params.get(index)) {
            (Some(arg), Some(param)) => Ok((arg, param)),
            _ => Err(Error::new(
                ErrorKind::OutOfRange,
                format!("argument {index} of {}", self.args.len()),
            )),
        }
    }

    fn elements<T: DeviceRepr>(&self, index: usize, to_write: bool) -> Result<(*mut T, usize)> {
        let (arg, param) = self.arg(index)?;
        let wrong = |what: &str| {
            let message = format!("argument {index} ('{}') {what}", param.name);
            Err(Error::new(ErrorKind::InvalidArgument, message))
        };
        if !param.is_buffer() {
            return wrong("is no memory");
        }
        let (element_bytes, is_written) = (param.element_bytes(), param.is_written());
        if is_written != to_write {
            return wrong(if is_written {
                "is declared as written"
            } else {
                "is declared as read only"
            });
        }
        let data = arg.data.cast::<T>();
        if element_bytes != size_of::<T>() as u64 || !data.is_aligned() {
            return wrong("has elements of another size");
        }
        Ok((data, (arg.bytes / element_bytes) as usize))
    }

    /// Memory declared as read.
    pub fn slice<T: DeviceRepr>(&self, index: usize) -> Result<&'a [T]> {
        let (data, len) = self.elements::<T>(index, false)?;
        // SAFETY: the library has checked the window, which lives for the call; nothing writes it, for
        // what is written is borrowed as `&mut` by the launch and thus another buffer.
        Ok(unsafe { std::slice::from_raw_parts(data, len) })
    }

    /// Memory declared as written; once a call.
    pub fn slice_mut<T: DeviceRepr>(&self, index: usize) -> Result<&'a mut [T]> {
        let (data, len) = self.elements::<T>(index, true)?;
        let mut taken = self.taken.borrow_mut();
        taken.resize(self.args.len(), false);
        if std::mem::replace(&mut taken[index], true) {
            let message = format!("argument {index} is borrowed already");
            return Err(Error::new(ErrorKind::InvalidState, message));
        }
        // SAFETY: as above; the launch borrows the buffer as `&mut`, and this is the only slice of it.
        Ok(unsafe { std::slice::from_raw_parts_mut(data, len) })
    }

    /// A number.
    pub fn value<T: DeviceRepr>(&self, index: usize) -> Result<T> {
        let (arg, param) = self.arg(index)?;
        if arg.kind != kind_of::<T>() {
            let message = format!("argument {index} ('{}') is of another type", param.name);
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        // SAFETY: the library has checked that the value has the size of its kind; any alignment.
        Ok(unsafe { arg.data.cast::<T>().read_unaligned() })
    }
}

impl fmt::Debug for HostCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostCall")
            .field("args", &self.args.len())
            .finish_non_exhaustive()
    }
}

/// A closure behind a native host function.
struct HostFunction {
    body: HostBody,
    params: Vec<ParamSpec>,
}

thread_local! {
    /// What a host function answered: it runs on the thread that launches.
    static HOST_ERROR: Cell<Option<Error>> = const { Cell::new(None) };
    static HOST_PANIC: ParkedPanic = ParkedPanic::default();
}

unsafe extern "C" fn run_host_function(
    user: *mut c_void,
    launch: *const ffi::wcuda_launch,
    args: *const ffi::wcuda_host_argument,
    count: u64,
) -> i32 {
    // SAFETY: `user` is the HostFunction that the kernel keeps; the rest is valid for the call.
    let (function, launch, args) = unsafe {
        (
            &*user.cast::<HostFunction>(),
            &*launch,
            match count {
                0 => &[][..],
                _ => std::slice::from_raw_parts(args, count as usize),
            },
        )
    };
    let call = HostCall {
        launch,
        args,
        params: &function.params,
        taken: RefCell::default(),
    };
    match HOST_PANIC.with(|parked| parked.guard(|| (function.body)(&call))) {
        Some(Ok(())) => 0,
        Some(Err(error)) => {
            HOST_ERROR.set(Some(error));
            1
        }
        None => 2,
    }
}

/// When a kernel may run elsewhere than asked. Decided before any work starts, never after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// It runs where it was asked to, or not at all.
    #[default]
    Never,
    /// Where there is no usable GPU, everything runs on the host.
    IfNoGpu,
}

/// What a run did.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ExecutionResult {
    /// Of the kernel: by events on a GPU, by the clock on the host.
    pub time: Duration,
    /// Threads asked for, or elements the host function was to work on.
    pub elements: u64,
    /// Memory that the arguments cover.
    pub bytes: u64,
    /// Where it ran.
    pub backend: Backend,
    /// The device's number.
    pub device_id: i32,
    /// Whether a GPU computed it.
    pub gpu_executed: bool,
    /// Why it ran on the host although a GPU was asked for; "" otherwise.
    pub fallback_reason: String,
}

impl ExecutionResult {
    /// Bytes a nanosecond.
    pub fn throughput_gbps(&self) -> f64 {
        self.bytes as f64 / self.time.as_nanos().max(1) as f64
    }

    /// Elements a second.
    pub fn elements_per_second(&self) -> f64 {
        self.elements as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// Counts of a [`GpuCompute`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ComputeStats {
    /// Kernels whose source was compiled or found in the cache.
    pub compiled: u64,
    /// Runs that succeeded.
    pub executed: u64,
}

/// A registered kernel. The host function outlives the native kernel, which is dropped first.
struct Registered {
    /// None of the catalogue's, and where there is no code for this backend.
    function: Option<CudaFunction>,
    params: Vec<ParamSpec>,
    /// In the registry; none without a signature.
    id: Option<u32>,
    _host: Option<Arc<HostFunction>>,
}

/// What one launch turned out to be.
struct Launched {
    elements: u64,
    budget_ms: u32,
}

/// Kernels by name on one device: compiled or loaded once, run with checked arguments.
///
/// ```
/// use worker_cuda::{CudaContext, GpuArg, GpuCompute, KernelSpec};
///
/// # fn main() -> worker_cuda::Result<()> {
/// let compute = GpuCompute::with_context(&CudaContext::host()?)?;
/// compute.register(
///     KernelSpec::new("double")
///         .write::<f32>("x", ["n".into()])
///         .scalar::<i32>("n")
///         .host(|call| {
///             let n = call.value::<i32>(1)? as usize;
///             call.slice_mut::<f32>(0)?[..n].iter_mut().for_each(|x| *x *= 2.0);
///             Ok(())
///         }),
/// )?;
/// let mut x = compute.device().upload(&[1.0f32, 2.0, 3.0])?;
/// let result = compute.run("double", &[GpuArg::from(&mut x), GpuArg::from(3i32)])?;
/// assert_eq!(x.to_vec()?, [2.0, 4.0, 6.0]);
/// assert!(!result.gpu_executed);
/// # Ok(())
/// # }
/// ```
pub struct GpuCompute {
    device: GpuDevice,
    launcher: KernelLauncher,
    backend: Backend,
    device_id: i32,
    fallback_reason: String,
    cache: Option<KernelCache>,
    library_folder: Option<std::path::PathBuf>,
    /// Goes before the kernels, which it keeps.
    registry: Registry,
    kernels: Mutex<HashMap<String, Arc<Registered>>>,
    stats: Mutex<ComputeStats>,
}

impl GpuCompute {
    /// On the first CUDA device, and nowhere else.
    pub fn new() -> Result<Self> {
        Self::open(Fallback::Never)
    }

    /// On the first CUDA device, or as `fallback` says; results tell.
    pub fn open(fallback: Fallback) -> Result<Self> {
        match CudaContext::new(0) {
            Ok(context) => Self::with_context(&context),
            Err(error)
                if fallback == Fallback::IfNoGpu
                    && matches!(error.kind(), ErrorKind::NoDevice | ErrorKind::NotAvailable) =>
            {
                let mut compute = Self::with_context(&CudaContext::host()?)?;
                compute.fallback_reason = error.message().to_owned();
                Ok(compute)
            }
            Err(error) => Err(error),
        }
    }

    /// On a context of the caller's, of either backend.
    pub fn with_context(context: &CudaContext) -> Result<Self> {
        let info = context.info()?;
        Ok(Self {
            device: GpuDevice::with_context(context),
            launcher: KernelLauncher::new(context),
            backend: info.backend,
            device_id: info.ordinal,
            fallback_reason: String::new(),
            cache: None,
            library_folder: None,
            registry: Registry::new(context)?,
            kernels: Mutex::default(),
            stats: Mutex::default(),
        })
    }

    /// Keeps compiled source in this cache.
    #[must_use]
    pub fn with_cache(mut self, cache: &KernelCache) -> Self {
        self.cache = Some(cache.clone());
        self
    }

    /// Takes the compiler from this folder; see [`ProgramBuilder::library_folder`].
    #[must_use]
    pub fn with_compiler_folder(mut self, folder: impl Into<std::path::PathBuf>) -> Self {
        self.library_folder = Some(folder.into());
        self
    }

    /// The device, for memory.
    pub fn device(&self) -> &GpuDevice {
        &self.device
    }

    /// The launcher, for PTX without registration.
    pub fn launcher(&self) -> &KernelLauncher {
        &self.launcher
    }

    /// Counts so far.
    pub fn stats(&self) -> ComputeStats {
        *lock(&self.stats)
    }

    /// Names registered, in order.
    pub fn kernels(&self) -> Vec<String> {
        let mut names: Vec<_> = lock(&self.kernels).keys().cloned().collect();
        names.sort();
        names
    }

    /// Kernels with a signature, by number: names, signatures' hashes, flags.
    pub fn registered(&self) -> Result<Vec<RegisteredKernel>> {
        self.registry.list()
    }

    pub(crate) fn context(&self) -> &CudaContext {
        self.device.context()
    }

    pub(crate) fn is_cuda(&self) -> bool {
        self.backend == Backend::Cuda
    }

    /// How source is compiled that holds these kernels; `name` is the file's in diagnostics.
    pub(crate) fn program(&self, name: &str, source: &str, entries: &[&str]) -> ProgramBuilder {
        let mut builder = Program::builder(source)
            .name(format!("{name}.cu"))
            .for_device(self.context());
        for entry in entries.iter().filter(|entry| entry.contains('<')) {
            builder = builder.expression(*entry);
        }
        if let Some(cache) = &self.cache {
            builder = builder.cache(cache);
        }
        if let Some(folder) = &self.library_folder {
            builder = builder.library_folder(folder);
        }
        builder
    }

    /// Compiles and loads.
    pub(crate) fn load_program(&self, program: ProgramBuilder) -> Result<CudaModule> {
        let program = program.compile()?;
        lock(&self.stats).compiled += 1;
        CudaModule::load_program(self.context(), &program)
    }

    /// Compiles CUDA C++ that holds kernel `name`, to be run by [`GpuCompute::run_kernel`]. A kernel
    /// of that name is replaced.
    pub fn compile_kernel(&self, name: &str, source: &str) -> Result<()> {
        if self.backend != Backend::Cuda {
            let message = format!("kernel '{name}': a host context runs no device code");
            return Err(Error::new(ErrorKind::UnsupportedKernel, message));
        }
        let module = self.load_program(self.program(name, source, &[name]))?;
        let registered = Registered {
            function: Some(module.get_function(name)?),
            params: Vec::new(),
            id: None,
            _host: None,
        };
        lock(&self.kernels).insert(name.to_owned(), Arc::new(registered));
        Ok(())
    }

    /// Registers a kernel with its signature; source is compiled now. A kernel of that name is replaced.
    /// Device code is left aside on a host context, a host function on CUDA; without the one it needs the
    /// kernel is [`ErrorKind::UnsupportedKernel`].
    pub fn register(&self, spec: KernelSpec) -> Result<()> {
        let on_gpu = self.is_cuda();
        let name = spec.descriptor.name.clone();
        let describe = |error: Error| error.with_context(format!("kernel '{name}'"));
        spec.descriptor.check().map_err(describe)?;
        let entry = spec.entry.as_deref().unwrap_or(&name);
        let module = match (&spec.device, on_gpu) {
            (Some(DeviceCode::Source(source)), true) => {
                Some(self.load_program(self.program(&name, source, &[entry]))?)
            }
            (Some(DeviceCode::Binary(code)), true) => Some(CudaModule::load(self.context(), code)?),
            _ => None,
        };
        if (on_gpu && module.is_none()) || (!on_gpu && spec.host.is_none()) {
            let what = if on_gpu {
                "device code"
            } else {
                "host function"
            };
            let message = format!("kernel '{name}': has no {what}");
            return Err(Error::new(ErrorKind::UnsupportedKernel, message));
        }
        let prepared = self.prepare(&spec.descriptor, entry, module.as_ref(), spec.host)?;
        self.put(prepared)
    }

    /// A kernel whose descriptor has been checked, with what runs it here, not registered yet. Without
    /// code for this backend it is one that cannot run here.
    pub(crate) fn prepare(
        &self,
        descriptor: &Descriptor,
        entry: &str,
        module: Option<&CudaModule>,
        host: Option<HostBody>,
    ) -> Result<Prepared> {
        let parameters: Vec<_> = descriptor.params.iter().map(native_parameter).collect();
        let host = host.map(|body| {
            Arc::new(HostFunction {
                body,
                params: descriptor.params.clone(),
            })
        });
        let mut options = ffi::wcuda_kernel_options::init();
        options.has_signature = 1;
        options.name = as_native(entry);
        options.parameters = parameters.as_ptr();
        options.parameter_count = parameters.len() as u64;
        if let Some(module) = module {
            options.module = module.handle();
        }
        if let Some(host) = &host {
            options.host = Some(run_host_function);
            options.host_user = Arc::as_ptr(host).cast_mut().cast();
        }
        let function = match (module, &host) {
            (None, None) => None,
            _ => Some(CudaFunction::create(self.context(), &options)?),
        };
        Ok(Prepared {
            descriptor: descriptor.clone(),
            function,
            host,
        })
    }

    /// Registers it. A kernel of that name is replaced.
    pub(crate) fn put(&self, prepared: Prepared) -> Result<()> {
        let handle = prepared.function.as_ref().map(CudaFunction::handle);
        let mut kernels = lock(&self.kernels);
        let id = self.registry.add(
            &prepared.descriptor,
            handle.unwrap_or(ffi::wcuda_kernel::zeroed()),
        )?;
        let registered = Registered {
            function: prepared.function,
            params: prepared.descriptor.params,
            id: Some(id),
            _host: prepared.host,
        };
        kernels.insert(prepared.descriptor.name, Arc::new(registered));
        Ok(())
    }

    /// Registers a kernel of the [`crate::catalogue()`] for elements of this type, under its name and
    /// `id` (0: any; `noop` has 1 and `tensor_add` of `f32` 2).
    pub fn register_ready(&self, name: &str, elements: ElementType, id: u32) -> Result<()> {
        self.put_ready(name, elements.kind(), id)
    }

    pub(crate) fn put_ready(&self, name: &str, elements: i32, id: u32) -> Result<()> {
        let mut kernels = lock(&self.kernels);
        let id = self.registry.add_ready(name, elements, id)?;
        let registered = Registered {
            function: None,
            params: Vec::new(),
            id: Some(id),
            _host: None,
        };
        kernels.insert(name.to_owned(), Arc::new(registered));
        Ok(())
    }

    fn find(&self, name: &str) -> Result<Arc<Registered>> {
        lock(&self.kernels).get(name).cloned().ok_or_else(|| {
            let message = format!("kernel '{name}' is not registered");
            Error::new(ErrorKind::NotFound, message)
        })
    }

    /// Runs a registered kernel and waits. Safe: its arguments are held against its signature, and
    /// whoever declared its device code vouched that it keeps to that. After [`ErrorKind::Timeout`] the
    /// kernel may still be at work on what it was given.
    pub fn run(&self, name: &str, args: &[GpuArg<'_>]) -> Result<ExecutionResult> {
        let kernel = self.find(name)?;
        let Some(id) = kernel.id else {
            let message = format!("kernel '{name}' has no signature: it needs run_kernel");
            return Err(Error::new(ErrorKind::UnsupportedKernel, message));
        };
        check_types(&kernel.params, args)?;
        self.timed(name, args, || {
            // SAFETY: a host function is safe Rust, a kernel of the catalogue keeps to its signature;
            // device code keeps to the extents, which the registry checks, by the contract of
            // `KernelSpec::source` and `code`. Nothing else uses the buffers: they are borrowed, and all
            // work of this type is on the context's own stream and waited for; what is not, after its
            // budget has passed, is before all that the context's own stream does with them later.
            let info = unsafe { self.registry.run(id, args) }?;
            Ok(Launched {
                elements: info.elements,
                budget_ms: info.budget_ms,
            })
        })
    }

    /// Runs a kernel with a grid and a block of the caller's, and waits.
    ///
    /// # Safety
    /// As for [`CudaFunction::launch`].
    pub unsafe fn run_kernel(
        &self,
        name: &str,
        grid: impl Into<Dim3>,
        block: impl Into<Dim3>,
        args: Vec<GpuArg<'_>>,
    ) -> Result<ExecutionResult> {
        let kernel = self.find(name)?;
        let Some(function) = &kernel.function else {
            let message = format!("kernel '{name}' takes no grid: it has a launch of its own");
            return Err(Error::new(ErrorKind::UnsupportedKernel, message));
        };
        let config = LaunchConfig::new(grid, block);
        self.timed(name, &args, || {
            // SAFETY: by this function's contract.
            unsafe { function.launch(&config, &args) }?;
            Ok(Launched {
                elements: config.threads(),
                budget_ms: 0,
            })
        })
    }

    /// Launches, waits and measures.
    fn timed(
        &self,
        name: &str,
        args: &[GpuArg<'_>],
        launch: impl FnOnce() -> Result<Launched>,
    ) -> Result<ExecutionResult> {
        let on_gpu = self.is_cuda();
        let (begin, end) = (self.context().event()?, self.context().event()?);
        HOST_ERROR.set(None);
        begin.record(None)?;
        let clock = Instant::now();
        let launched = launch();
        let mut time = clock.elapsed();
        HOST_PANIC.with(ParkedPanic::resume);
        let launched = launched.map_err(|error| HOST_ERROR.take().unwrap_or(error))?;
        end.record(None)?;
        let budget = Duration::from_millis(launched.budget_ms.into());
        if budget.is_zero() {
            end.wait()?;
        } else {
            match end.wait_timeout(budget) {
                Err(error) if error.kind() == ErrorKind::Timeout => time = Duration::MAX,
                other => other?,
            }
        }
        if on_gpu && time != Duration::MAX {
            time = begin.elapsed_to(&end)?;
        }
        if !budget.is_zero() && time > budget {
            let message = format!("kernel '{name}': has run longer than its {budget:?}");
            return Err(Error::new(ErrorKind::Timeout, message));
        }
        lock(&self.stats).executed += 1;
        Ok(ExecutionResult {
            time,
            elements: launched.elements,
            bytes: args.iter().map(GpuArg::byte_len).sum(),
            backend: self.backend,
            device_id: self.device_id,
            gpu_executed: on_gpu,
            fallback_reason: self.fallback_reason.clone(),
        })
    }
}

impl fmt::Debug for GpuCompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuCompute")
            .field("backend", &self.backend)
            .field("kernels", &self.kernels())
            .finish_non_exhaustive()
    }
}

/// A kernel that is ready to be registered.
pub(crate) struct Prepared {
    descriptor: Descriptor,
    function: Option<CudaFunction>,
    host: Option<Arc<HostFunction>>,
}

/// What the code must take: kinds and access; extents are the descriptor's.
fn native_parameter(param: &ParamSpec) -> ffi::wcuda_parameter {
    let mut native = ffi::wcuda_parameter::zeroed();
    native.kind = param.kind;
    native.access = param.access;
    if param.is_buffer() {
        native.min_bytes = scalar_bytes(param.dtype);
    } else if param.kind == ffi::WCUDA_ARG_BYTES {
        native.min_bytes = param.shape.parse().unwrap_or(1); // the registry has checked it
        native.max_bytes = native.min_bytes;
    }
    native
}

/// What the types of Rust know of the arguments, and the registry does not: the size of a buffer's
/// elements, and that what is written is passed as `&mut`.
fn check_types(params: &[ParamSpec], args: &[GpuArg<'_>]) -> Result<()> {
    for (index, (param, arg)) in params.iter().zip(args).enumerate() {
        let Value::Window {
            element_bytes: given,
            is_mutable,
            ..
        } = &arg.value
        else {
            continue;
        };
        let wrong = |what: String| {
            let message = format!("argument {index} ('{}') {what}", param.name);
            Err(Error::new(ErrorKind::InvalidArgument, message))
        };
        let takes = param.element_bytes();
        if param.is_buffer() && *given != takes {
            return wrong(format!(
                "has elements of {given} bytes, the kernel takes {takes}"
            ));
        }
        if param.is_buffer() && param.is_written() && !is_mutable {
            return wrong("is written by the kernel and must be passed as &mut".to_owned());
        }
    }
    Ok(())
}
