//! A device for kernels, and launches of PTX without registration.

use std::collections::HashMap;
use std::sync::Mutex;

use super::lock;
use crate::compute::module::{CudaModule, Dim3, GpuArg, LaunchConfig};
use crate::core::context::CudaContext;
use crate::core::error::Result;
use crate::core::memory::{DeviceRepr, SafeCudaPtr};

/// A device for computations: allocations and copies in one object.
///
/// ```
/// use worker_cuda::{CudaContext, GpuDevice};
/// # fn main() -> worker_cuda::Result<()> {
/// let device = GpuDevice::with_context(&CudaContext::auto()?);
/// let buffer = device.upload(&[1.0f32, 2.0])?;
/// assert_eq!(device.download(&buffer)?, [1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct GpuDevice {
    context: CudaContext,
}

impl GpuDevice {
    /// Opens CUDA device `ordinal`. It is an error if there is none.
    pub fn new(ordinal: i32) -> Result<Self> {
        Ok(Self::with_context(&CudaContext::new(ordinal)?))
    }

    /// Uses an open context of either backend.
    pub fn with_context(context: &CudaContext) -> Self {
        Self {
            context: context.clone(),
        }
    }

    /// The context in use.
    pub fn context(&self) -> &CudaContext {
        &self.context
    }

    /// Allocates a buffer with these values.
    pub fn upload<T: DeviceRepr>(&self, values: &[T]) -> Result<SafeCudaPtr<T>> {
        self.context.alloc_from(values)
    }

    /// Reads all values of a buffer.
    pub fn download<T: DeviceRepr>(&self, buffer: &SafeCudaPtr<T>) -> Result<Vec<T>> {
        buffer.to_vec()
    }

    /// Allocates a buffer of `len` zeros.
    pub fn allocate<T: DeviceRepr>(&self, len: usize) -> Result<SafeCudaPtr<T>> {
        self.context.alloc(len)
    }
}

/// Launches kernels of PTX; each text is loaded once.
///
/// ```no_run
/// use worker_cuda::{CudaContext, KernelLauncher};
/// # fn main() -> worker_cuda::Result<()> {
/// const PTX: &str = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry nothing() { ret; }";
/// let launcher = KernelLauncher::new(&CudaContext::new(0)?);
/// // SAFETY: the kernel touches no memory.
/// unsafe { launcher.load_and_launch_ptx(PTX, "nothing", 1, 32, &[]) }?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct KernelLauncher {
    context: CudaContext,
    modules: Mutex<HashMap<String, CudaModule>>,
}

impl KernelLauncher {
    /// Launches on this context.
    pub fn new(context: &CudaContext) -> Self {
        Self {
            context: context.clone(),
            modules: Mutex::default(),
        }
    }

    /// Loads the module unless it is loaded already, and queues the kernel.
    ///
    /// # Safety
    /// As for [`crate::CudaFunction::launch`].
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
