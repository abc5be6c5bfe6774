//! Host functions beside a GPU: on copies of the arguments, which are copied back.

use std::time::Duration;

use super::host::told_by_host;
use crate::compute::module::{CudaFunction, GpuArg, Value};
use crate::compute::registry::{Descriptor, Registry};
use crate::core::context::CudaContext;
use crate::core::error::{Result, call};
use crate::core::memory::SafeCudaPtr;
use crate::ffi;

/// A kernel's host function on a host context. The registry goes before the kernel, which it keeps.
pub(super) struct Aside {
    registry: Registry,
    id: u32,
    function: CudaFunction,
}

impl Aside {
    pub(super) fn new(descriptor: &Descriptor, function: CudaFunction) -> Result<Self> {
        let registry = Registry::new(function.context())?;
        let id = registry.add(descriptor, function.handle())?;
        Ok(Self {
            registry,
            id,
            function,
        })
    }

    pub(super) fn context(&self) -> &CudaContext {
        self.function.context()
    }

    /// On copies in its own context.
    pub(super) fn run(&self, copies: &Copies<'_>) -> Result<(ffi::wcuda_run_info, Duration)> {
        // SAFETY: a host function is safe Rust, and nobody else has the copies.
        told_by_host(|| unsafe { self.registry.run(self.id, &copies.args()) })
    }
}

/// Copies of all windows among some arguments.
pub(super) struct Copies<'a> {
    args: &'a [GpuArg<'a>],
    buffers: Vec<Option<SafeCudaPtr<u8>>>,
}

impl<'a> Copies<'a> {
    /// Copies to a context, of either backend, after all work on the windows' own stream.
    pub(super) fn new(context: &CudaContext, args: &'a [GpuArg<'a>]) -> Result<Self> {
        let copy = |arg: &GpuArg<'_>| match &arg.value {
            Value::Window { .. } => {
                let mut buffer = context.alloc_tagged::<u8>(arg.byte_len() as usize, "copy")?;
                buffer.write_at(0, &window_bytes(arg)?)?;
                Ok(Some(buffer))
            }
            _ => Ok(None),
        };
        Ok(Self {
            args,
            buffers: args.iter().map(copy).collect::<Result<_>>()?,
        })
    }

    /// The arguments with the copies in place of the windows.
    pub(super) fn args(&self) -> Vec<GpuArg<'_>> {
        let pairs = self.args.iter().zip(&self.buffers);
        pairs
            .map(|(arg, buffer)| arg.moved_to(buffer.as_ref()))
            .collect()
    }

    /// The bytes of a copy; none for what is no window.
    pub(super) fn bytes(&self, index: usize) -> Result<Vec<u8>> {
        self.buffers[index]
            .as_ref()
            .map_or(Ok(Vec::new()), SafeCudaPtr::to_vec)
    }

    /// Puts the copies of windows that may be written back.
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
        ..
    } = arg.value
    else {
        return Ok(Vec::new());
    };
    let mut data = vec![0u8; bytes as usize];
    // SAFETY: `data` has that many bytes; the library checks the window's bounds.
    call(|error| unsafe {
        ffi::wcuda_buffer_read(buffer, offset, data.as_mut_ptr().cast(), bytes, error)
    })?;
    Ok(data)
}

/// Runs a host function on copies of the arguments; what it writes is copied back when it has succeeded,
/// and nothing otherwise.
pub(super) fn run_aside(
    aside: &Aside,
    args: &[GpuArg<'_>],
) -> Result<(ffi::wcuda_run_info, Duration)> {
    let copies = Copies::new(aside.context(), args)?;
    let ran = aside.run(&copies)?;
    copies.write_back()?;
    Ok(ran)
}
