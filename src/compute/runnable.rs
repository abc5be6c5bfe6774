//! A kernel together with the descriptor that its arguments are checked against.

use super::spec::check_types;
use crate::compute::module::{CudaFunction, GpuArg};
use crate::compute::registry::{Descriptor, ParamSpec, Registry};
use crate::core::context::CudaContext;
use crate::core::error::Result;
use crate::ffi;

/// A kernel in a native registry of its own. It never changes, so that what runs is what the arguments
/// were checked against, also while another thread registers a kernel of the same name.
pub(super) struct Runnable {
    /// Destroyed before the function that it keeps.
    registry: Registry,
    id: u32,
    params: Vec<ParamSpec>,
    /// None of the catalogue's, and where there is no code for this backend.
    function: Option<CudaFunction>,
    context: CudaContext,
}

impl Runnable {
    /// A kernel of the caller's. Without a function it can be listed, and not run.
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

    /// Checks what the library does not know of the arguments: the types of their elements.
    pub(super) fn check(&self, args: &[GpuArg<'_>]) -> Result<()> {
        check_types(&self.params, args)
    }

    /// Queues a run; on the host it is over when this returns.
    ///
    /// # Safety
    /// [`Runnable::check`] has accepted the arguments. Device code keeps to the descriptor, and nothing
    /// else uses the buffers until the context's own stream has passed the run.
    pub(super) unsafe fn run(&self, args: &[GpuArg<'_>]) -> Result<ffi::wcuda_run_info> {
        // SAFETY: by this function's contract.
        unsafe { self.registry.run(self.id, args) }
    }
}
