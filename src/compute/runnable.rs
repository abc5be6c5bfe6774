//! A kernel together with the descriptor that its arguments are checked against.

use super::spec::check_types;
use crate::compute::module::{CudaFunction, GpuArg, take_turns};
use crate::compute::registry::{Descriptor, ParamSpec, Registry};
use crate::core::context::CudaContext;
use crate::core::error::Result;
use crate::ffi;

/// A kernel in a native registry of its own. It never changes, so the kernel that runs is the one that the arguments
/// were checked against, even if another thread registers a kernel of the same name.
pub(super) struct Runnable {
    /// Dropped before the function that it refers to.
    registry: Registry,
    id: u32,
    params: Vec<ParamSpec>,
    /// None for kernels of the catalogue, and if there is no code for this backend.
    function: Option<CudaFunction>,
    /// Of the catalogue.
    is_builtin: bool,
    context: CudaContext,
}

impl Runnable {
    /// Creates a kernel from a descriptor. Without a function it can be listed but not run.
    pub(super) fn new(
        context: &CudaContext,
        descriptor: &Descriptor,
        function: Option<CudaFunction>,
    ) -> Result<Self> {
        let registry = Registry::new(context)?;
        let kernel = function.as_ref().map(CudaFunction::handle);
        let id = registry.add(descriptor, kernel.unwrap_or(ffi::wcuda_kernel::zeroed()))?;
        Ok(Self {
            registry,
            id,
            params: descriptor.params.clone(),
            function,
            is_builtin: false,
            context: context.clone(),
        })
    }

    /// A kernel of the catalogue for elements of a `WCUDA_ARG_…`.
    pub(super) fn builtin(context: &CudaContext, name: &str, elements: i32) -> Result<Self> {
        let registry = Registry::new(context)?;
        let id = registry.add_builtin(name, elements, 0)?;
        Ok(Self {
            registry,
            id,
            params: Vec::new(),
            function: None,
            is_builtin: true,
            context: context.clone(),
        })
    }

    pub(super) fn context(&self) -> &CudaContext {
        &self.context
    }

    pub(super) fn params(&self) -> &[ParamSpec] {
        &self.params
    }

    pub(super) fn function(&self) -> Option<&CudaFunction> {
        self.function.as_ref()
    }

    /// Checks what the library does not know about the arguments: their element types.
    pub(super) fn check(&self, args: &[GpuArg<'_>]) -> Result<()> {
        check_types(&self.params, args)
    }

    /// Queues a run; on the host it has finished when this returns.
    ///
    /// # Safety
    /// [`Runnable::check`] has accepted the arguments. Device code conforms to the descriptor, and nothing else uses
    /// the buffers until the run has finished on the context's own stream.
    pub(super) unsafe fn run(&self, args: &[GpuArg<'_>]) -> Result<ffi::wcuda_run_info> {
        let _turns = match self.is_builtin {
            true => take_turns(args)?,
            false => Vec::new(),
        };
        // SAFETY: by this function's contract.
        unsafe { self.registry.run(self.id, args) }
    }
}
