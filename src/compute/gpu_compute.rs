//! Kernels by name on one device.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::copies::run_on_copies;
use super::device::{GpuDevice, KernelLauncher};
use super::host::{HostBody, HostFunction, create_kernel, timed_launch};
use super::lock;
use super::result::{ComputeStats, ExecutionResult, Fallback};
use super::runnable::Runnable;
use super::spec::{DeviceCode, KernelSpec};
use crate::compute::catalogue::ElementType;
use crate::compute::module::{CudaFunction, CudaModule, Dim3, GpuArg, LaunchConfig};
use crate::compute::program::{KernelCache, Program, ProgramBuilder};
use crate::compute::registry::{Descriptor, RegisteredKernel, Registry};
use crate::core::context::CudaContext;
use crate::core::device::Backend;
use crate::core::error::{Error, ErrorKind, Result};
use crate::core::native_text::as_native;
use crate::ffi;

/// What is registered under a name. A run holds it from the lookup to the end, so replacing the name does not
/// affect the run.
pub(super) enum Registered {
    /// A kernel with a signature.
    Described(Kernel),
    /// Device code alone, launched with the caller's grid.
    Code(CudaFunction),
}

/// A kernel with a signature.
pub(super) struct Kernel {
    /// Runs in the context of the [`GpuCompute`].
    pub(super) own: Runnable,
    /// On a GPU: the host function of the same kernel, in a host context.
    pub(super) on_host: Option<Runnable>,
    /// Why the host function runs instead of device code; None if it does not.
    fallback: Option<String>,
}

impl Registered {
    fn function(&self) -> Option<&CudaFunction> {
        match self {
            Self::Described(kernel) => kernel.own.function(),
            Self::Code(function) => Some(function),
        }
    }
}

/// Outcome of one launch.
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
    fallback: Fallback,
    fallback_reason: String,
    /// On a GPU: a host context, opened for the first kernel that has a host function.
    host_context: Mutex<Option<CudaContext>>,
    cache: Option<KernelCache>,
    library_folder: Option<std::path::PathBuf>,
    /// Lists the kernels by number, and lets a backend's table find them by name.
    registry: Registry,
    kernels: Mutex<HashMap<String, Arc<Registered>>>,
    stats: Mutex<ComputeStats>,
}

impl GpuCompute {
    /// Opens the first CUDA device. It is an error if there is none.
    pub fn new() -> Result<Self> {
        Self::open(Fallback::Never)
    }

    /// Opens the first CUDA device, or another as `fallback` allows; the result of a run names the backend that ran.
    pub fn open(fallback: Fallback) -> Result<Self> {
        match CudaContext::new(0) {
            Ok(context) => Ok(Self::with_context(&context)?.with_fallback(fallback)),
            Err(error)
                if fallback != Fallback::Never
                    && matches!(error.kind(), ErrorKind::NoDevice | ErrorKind::NotAvailable) =>
            {
                let mut compute = Self::with_context(&CudaContext::host()?)?;
                compute.fallback_reason = error.message().to_owned();
                Ok(compute)
            }
            Err(error) => Err(error),
        }
    }

    /// Uses an open context of either backend.
    pub fn with_context(context: &CudaContext) -> Result<Self> {
        let info = context.info()?;
        Ok(Self {
            device: GpuDevice::with_context(context),
            launcher: KernelLauncher::new(context),
            backend: info.backend,
            device_id: info.ordinal,
            fallback: Fallback::Never,
            fallback_reason: String::new(),
            host_context: Mutex::default(),
            cache: None,
            library_folder: None,
            registry: Registry::new(context)?,
            kernels: Mutex::default(),
            stats: Mutex::default(),
        })
    }

    /// What happens to kernels registered from now on that have no code for the GPU.
    #[must_use]
    pub fn with_fallback(mut self, fallback: Fallback) -> Self {
        self.fallback = fallback;
        self
    }

    /// Stores compiled source in this cache.
    #[must_use]
    pub fn with_cache(mut self, cache: &KernelCache) -> Self {
        self.cache = Some(cache.clone());
        self
    }

    /// Loads the compiler from this folder; see [`ProgramBuilder::library_folder`].
    #[must_use]
    pub fn with_compiler_folder(mut self, folder: impl Into<std::path::PathBuf>) -> Self {
        self.library_folder = Some(folder.into());
        self
    }

    /// The device, for allocations and copies.
    pub fn device(&self) -> &GpuDevice {
        &self.device
    }

    /// The launcher, for PTX without registration.
    pub fn launcher(&self) -> &KernelLauncher {
        &self.launcher
    }

    /// Counters since it was created.
    pub fn stats(&self) -> ComputeStats {
        *lock(&self.stats)
    }

    /// Names of the registered kernels, in order.
    pub fn kernels(&self) -> Vec<String> {
        let mut names: Vec<_> = lock(&self.kernels).keys().cloned().collect();
        names.sort();
        names
    }

    /// Kernels with a signature, by number: names, hashes of signatures, flags.
    pub fn registered(&self) -> Result<Vec<RegisteredKernel>> {
        self.registry.list()
    }

    #[cfg(feature = "zctl")]
    pub(crate) fn native_registry(&self) -> ffi::wcuda_registry {
        self.registry.native()
    }

    pub(crate) fn context(&self) -> &CudaContext {
        self.device.context()
    }

    pub(crate) fn is_cuda(&self) -> bool {
        self.backend == Backend::Cuda
    }

    /// Builder for source that contains these kernels; `name` is the file's name in diagnostics.
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
        let cache = program.info()?.cache;
        lock(&self.stats).count_compile(cache);
        CudaModule::load_program(self.context(), &program)
    }

    /// Compiles CUDA C++ that contains kernel `name`, for [`GpuCompute::run_kernel`]. Replaces a kernel of that name.
    pub fn compile_kernel(&self, name: &str, source: &str) -> Result<()> {
        if self.backend != Backend::Cuda {
            let message = format!("kernel '{name}': a host context runs no device code");
            return Err(Error::new(ErrorKind::UnsupportedKernel, message));
        }
        let module = self.load_program(self.program(name, source, &[name]))?;
        let function = module.get_function(name)?;
        let mut kernels = lock(&self.kernels);
        self.registry.remove(name)?;
        let replaced = kernels.insert(name.to_owned(), Arc::new(Registered::Code(function)));
        drop(kernels);
        drop(replaced);
        Ok(())
    }

    /// Registers a kernel with its signature; source is compiled now. Replaces a kernel of that name. A kernel
    /// without code for this backend is [`ErrorKind::UnsupportedKernel`], unless this is a GPU, the kernel has a
    /// host function and [`Fallback::IfUnsupported`] is set: then the host function runs, and the result says so.
    pub fn register(&self, spec: KernelSpec) -> Result<()> {
        let name = spec.descriptor.name.clone();
        let describe = |error: Error| error.with_context(format!("kernel '{name}'"));
        spec.descriptor.check().map_err(describe)?;
        let entry = spec.entry.as_deref().unwrap_or(&name);
        let (module, fallback) = match self.device_code(&spec, entry) {
            Ok(module) => (module, None),
            Err(error) if self.may_fall_back(error.kind()) && spec.host.is_some() => {
                (None, Some(error.message().to_owned()))
            }
            Err(error) => return Err(error),
        };
        if !self.is_cuda() && spec.host.is_none() {
            let message = format!("kernel '{name}': has no host function");
            return Err(Error::new(ErrorKind::UnsupportedKernel, message));
        }
        let mut prepared = self.prepare(&spec.descriptor, entry, module.as_ref(), spec.host)?;
        let own_reason = prepared.kernel.fallback.take();
        prepared.kernel.fallback = fallback.or(own_reason);
        self.put(prepared)
    }

    /// The kernel's code for this GPU; None on a host context.
    fn device_code(&self, spec: &KernelSpec, entry: &str) -> Result<Option<CudaModule>> {
        if !self.is_cuda() {
            return Ok(None);
        }
        let name = &spec.descriptor.name;
        match &spec.device {
            Some(DeviceCode::Source(source)) => self
                .load_program(self.program(name, source, &[entry]))
                .map(Some),
            Some(DeviceCode::Binary(code)) => CudaModule::load(self.context(), code).map(Some),
            None => {
                let message = format!("kernel '{name}': has no device code");
                Err(Error::new(ErrorKind::UnsupportedKernel, message))
            }
        }
    }

    /// Whether a host function may run because device code is missing for this reason.
    fn may_fall_back(&self, reason: ErrorKind) -> bool {
        self.fallback == Fallback::IfUnsupported
            && matches!(
                reason,
                ErrorKind::UnsupportedKernel | ErrorKind::Unsupported | ErrorKind::NotAvailable
            )
    }

    fn host_context(&self) -> Result<CudaContext> {
        let mut opened = lock(&self.host_context);
        match &*opened {
            Some(context) => Ok(context.clone()),
            None => Ok(opened.insert(CudaContext::host()?).clone()),
        }
    }

    /// Checks a kernel's descriptor and compiles its code, without registering it. Without code for this backend the
    /// kernel can be listed but not run.
    pub(crate) fn prepare(
        &self,
        descriptor: &Descriptor,
        entry: &str,
        module: Option<&CudaModule>,
        host: Option<HostBody>,
    ) -> Result<Prepared> {
        let parameters: Vec<_> = descriptor
            .params
            .iter()
            .map(crate::compute::registry::ParamSpec::to_native)
            .collect();
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
        let on_host = match &host {
            Some(_) if self.is_cuda() => {
                let context = self.host_context()?;
                // SAFETY: the entry and the parameters live for the call.
                let function = unsafe { create_kernel(&context, options, host.as_ref()) }?;
                Some(Runnable::new(&context, descriptor, Some(function))?)
            }
            _ => None,
        };
        let has_code = if self.is_cuda() {
            module.is_some()
        } else {
            host.is_some()
        };
        let fallback = (!has_code && self.may_fall_back(ErrorKind::UnsupportedKernel))
            .then(|| format!("kernel '{}': has no device code", descriptor.name));
        if let Some(module) = module {
            options.module = module.handle();
        }
        let function = match has_code {
            // SAFETY: as above; `module` is live.
            true => Some(unsafe { create_kernel(self.context(), options, host.as_ref()) }?),
            false => None,
        };
        Ok(Prepared {
            descriptor: descriptor.clone(),
            kernel: Kernel {
                own: Runnable::new(self.context(), descriptor, function)?,
                fallback: fallback.filter(|_| on_host.is_some()),
                on_host,
            },
        })
    }

    /// Registers the kernel. Replaces a kernel of that name.
    pub(crate) fn put(&self, prepared: Prepared) -> Result<()> {
        let Prepared { descriptor, kernel } = prepared;
        let function = kernel.own.function().map(CudaFunction::handle);
        let mut kernels = lock(&self.kernels);
        self.registry
            .add(&descriptor, function.unwrap_or(ffi::wcuda_kernel::zeroed()))?;
        let replaced = kernels.insert(descriptor.name, Arc::new(Registered::Described(kernel)));
        drop(kernels); // a closure that goes now may call this
        drop(replaced);
        Ok(())
    }

    /// Registers a built-in kernel of the [catalogue](fn@crate::catalogue) for this element type, under its name and
    /// `id` (0: any; `noop` has 1, and `tensor_add` of `f32` has 2).
    pub fn register_builtin(&self, name: &str, elements: ElementType, id: u32) -> Result<()> {
        self.put_builtin(name, elements.kind(), id)
    }

    pub(crate) fn put_builtin(&self, name: &str, elements: i32, id: u32) -> Result<()> {
        let kernel = Kernel {
            own: Runnable::builtin(self.context(), name, elements)?,
            on_host: None,
            fallback: None,
        };
        let mut kernels = lock(&self.kernels);
        self.registry.add_builtin(name, elements, id)?;
        let replaced = kernels.insert(name.to_owned(), Arc::new(Registered::Described(kernel)));
        drop(kernels);
        drop(replaced);
        Ok(())
    }

    pub(super) fn find(&self, name: &str) -> Result<Arc<Registered>> {
        lock(&self.kernels).get(name).cloned().ok_or_else(|| {
            let message = format!("kernel '{name}' is not registered");
            Error::new(ErrorKind::NotFound, message)
        })
    }

    /// Runs a registered kernel and waits. This is safe: arguments are checked against the signature, and whoever
    /// declared the device code guaranteed that it keeps to the signature. After [`ErrorKind::Timeout`] the kernel
    /// may still be using its arguments. [`ErrorKind::Busy`] while another thread uses one of the buffers, unless the kernel
    /// is built in.
    pub fn run(&self, name: &str, args: &[GpuArg<'_>]) -> Result<ExecutionResult> {
        let found = self.find(name)?;
        let Registered::Described(kernel) = &*found else {
            let message = format!("kernel '{name}' has no signature: it needs run_kernel");
            return Err(Error::new(ErrorKind::UnsupportedKernel, message));
        };
        kernel.own.check(args)?;
        if let (Some(reason), Some(on_host)) = (&kernel.fallback, &kernel.on_host) {
            return self.run_on_host(name, on_host, reason, args);
        }
        self.timed(name, args, || {
            // SAFETY: the arguments are checked. A host function is safe Rust, a kernel of the catalogue
            // keeps to its signature; device code keeps to the extents, which the registry checks, by the
            // contract of `KernelSpec::source` and `code`. Nothing else uses the buffers: they are
            // borrowed, and all work of this type is on the context's own stream and waited for; what is
            // not, after its budget has passed, is before all that the context's own stream does with
            // them later.
            let info = unsafe { kernel.own.run(args) }?;
            Ok(Launched {
                elements: info.elements,
                budget_ms: info.budget_ms,
            })
        })
    }

    /// Runs a host function instead of device code.
    fn run_on_host(
        &self,
        name: &str,
        on_host: &Runnable,
        reason: &str,
        args: &[GpuArg<'_>],
    ) -> Result<ExecutionResult> {
        let (info, time) = run_on_copies(on_host, args)?;
        check_budget(name, time, Duration::from_millis(info.budget_ms.into()))?;
        lock(&self.stats).executed += 1;
        Ok(ExecutionResult {
            time,
            elements: info.elements,
            bytes: args.iter().map(GpuArg::byte_len).sum(),
            backend: Backend::Host,
            device_id: 0,
            gpu_executed: false,
            fallback_reason: reason.to_owned(),
        })
    }

    /// Runs a kernel with the given grid and block, and waits.
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
        let Some(function) = kernel.function() else {
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
        begin.record(None)?;
        let (launched, mut time) = timed_launch(launch)?;
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
        check_budget(name, time, budget)?;
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

/// A kernel whose descriptor is checked and whose code is compiled.
pub(crate) struct Prepared {
    descriptor: Descriptor,
    pub(super) kernel: Kernel,
}

/// A budget of 0 means no budget.
fn check_budget(name: &str, time: Duration, budget: Duration) -> Result<()> {
    if budget.is_zero() || time <= budget {
        return Ok(());
    }
    let message = format!("kernel '{name}': has run longer than its {budget:?}");
    Err(Error::new(ErrorKind::Timeout, message))
}
