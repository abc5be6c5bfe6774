//! Copies of a launch's arguments, for a second run of the same launch.

use std::time::Duration;

use super::host::timed_launch;
use super::runnable::Runnable;
use crate::compute::module::{GpuArg, Value};
use crate::core::callback::lock_outside_callbacks;
use crate::core::context::CudaContext;
use crate::core::error::{Result, call};
use crate::core::memory::{SafeCudaPtr, zeros};
use crate::ffi;

/// Copies of all windows among some arguments.
pub(super) struct Copies<'a> {
    args: &'a [GpuArg<'a>],
    buffers: Vec<Option<SafeCudaPtr<u8>>>,
}

impl<'a> Copies<'a> {
    /// Copies the windows to a context of either backend, after all work on the windows' own stream.
    pub(super) fn new(context: &CudaContext, args: &'a [GpuArg<'a>]) -> Result<Self> {
        let copy = |arg: &GpuArg<'_>| match &arg.value {
            Value::Window { .. } => context
                .alloc_from_tagged(&window_bytes(arg)?, "copy")
                .map(Some),
            _ => Ok(None),
        };
        Ok(Self {
            args,
            buffers: args.iter().map(copy).collect::<Result<_>>()?,
        })
    }

    /// Runs a kernel of the copies' context on the copies. On CUDA it is queued, and reading a copy waits for it.
    pub(super) fn run(&self, kernel: &Runnable) -> Result<(ffi::wcuda_run_info, Duration)> {
        kernel.check(self.args)?;
        // SAFETY: the arguments are checked; nobody else has the copies.
        timed_launch(|| unsafe { kernel.run(&self.args()) })
    }

    /// The arguments with the copies in place of the windows.
    fn args(&self) -> Vec<GpuArg<'_>> {
        let pairs = self.args.iter().zip(&self.buffers);
        pairs
            .map(|(arg, buffer)| arg.moved_to(buffer.as_ref()))
            .collect()
    }

    /// The bytes of a copy; None if the argument is not a window.
    pub(super) fn bytes(&self, index: usize) -> Result<Vec<u8>> {
        self.buffers[index]
            .as_ref()
            .map_or(Ok(Vec::new()), SafeCudaPtr::to_vec)
    }

    /// Copies the writable windows back.
    fn write_back(&self) -> Result<()> {
        for (index, arg) in self.args.iter().enumerate() {
            let Value::Window {
                buffer,
                offset,
                is_mutable: true,
                ..
            } = arg.value
            else {
                continue;
            };
            let bytes = self.bytes(index)?;
            // SAFETY: the window is borrowed as `&mut`; the library checks its bounds.
            call(|error| unsafe {
                let data = bytes.as_ptr().cast();
                ffi::wcuda_buffer_write(buffer, offset, data, bytes.len() as u64, error)
            })?;
        }
        Ok(())
    }
}

fn window_bytes(arg: &GpuArg<'_>) -> Result<Vec<u8>> {
    let Value::Window {
        buffer,
        offset,
        bytes,
        turn,
        ..
    } = arg.value
    else {
        return Ok(Vec::new());
    };
    let _turn = lock_outside_callbacks(turn)?;
    let mut data = zeros::<u8>(bytes as usize)?;
    // SAFETY: `data` has that many bytes; the library checks the window's bounds.
    call(|error| unsafe {
        ffi::wcuda_buffer_read(buffer, offset, data.as_mut_ptr().cast(), bytes, error)
    })?;
    Ok(data)
}

/// Runs a kernel on copies of the arguments in its own context. Its outputs are copied back if it succeeds.
pub(super) fn run_on_copies(
    kernel: &Runnable,
    args: &[GpuArg<'_>],
) -> Result<(ffi::wcuda_run_info, Duration)> {
    let copies = Copies::new(kernel.context(), args)?;
    let ran = copies.run(kernel)?;
    copies.write_back()?;
    Ok(ran)
}
