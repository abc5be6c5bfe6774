//! Kernels by name and number, each with a descriptor that defines a valid call.

use crate::compute::module::{GpuArg, natives};
use crate::core::context::CudaContext;
use crate::core::error::{Error, ErrorKind, Result, call};
use crate::core::native_text::{as_native, fixed_text};
use crate::ffi;

/// A kernel of a registry.
///
/// ```
/// use worker_cuda::{CudaContext, ElementType, GpuCompute};
/// # fn main() -> worker_cuda::Result<()> {
/// let compute = GpuCompute::with_context(&CudaContext::host()?)?;
/// compute.register_builtin("relu", ElementType::F32, 0)?;
/// let relu = &compute.registered()?[0];
/// assert_eq!((relu.name.as_str(), relu.runs_here), ("relu", true));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegisteredKernel {
    /// The number, unique in its registry.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// 64-bit FNV-1a hash of the canonical signature; 0 for `noop` (1) and 0xA1 for `tensor_add` (2).
    pub sig_hash: u64,
    /// Number of arguments.
    pub parameter_count: u32,
    /// Limit of a run in milliseconds; 0: none.
    pub budget_ms: u32,
    /// Whether equal calls give the same bits.
    pub is_deterministic: bool,
    /// Whether this context's backend can run it.
    pub runs_here: bool,
}

impl RegisteredKernel {
    /// Bit 0: not deterministic; bit 1: not on this backend.
    pub fn flags(&self) -> u32 {
        let bit = |on: bool, bit: u32| if on { bit } else { 0 };
        bit(!self.is_deterministic, ffi::WCUDA_KERNEL_NON_DETERMINISTIC)
            | bit(!self.runs_here, ffi::WCUDA_KERNEL_NOT_HERE)
    }

    fn from_native(native: &ffi::wcuda_registered_kernel) -> Self {
        Self {
            id: native.kernel_id,
            name: fixed_text(&native.name),
            sig_hash: native.sig_hash,
            parameter_count: native.parameter_count,
            budget_ms: native.budget_ms,
            is_deterministic: native.flags & ffi::WCUDA_KERNEL_NON_DETERMINISTIC == 0,
            runs_here: native.flags & ffi::WCUDA_KERNEL_NOT_HERE == 0,
        }
    }
}

/// One parameter in the form of the C interface; sizes and bounds are texts of expressions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ParamSpec {
    pub(crate) name: String,
    pub(crate) kind: i32,
    pub(crate) dtype: i32,
    pub(crate) access: u32,
    pub(crate) layout: i32,
    pub(crate) layout_id: u32,
    pub(crate) shape: String,
    pub(crate) min: String,
    pub(crate) max: String,
}

impl ParamSpec {
    pub(crate) fn is_buffer(&self) -> bool {
        self.kind == ffi::WCUDA_ARG_BUFFER
    }

    pub(crate) fn is_written(&self) -> bool {
        self.access == 0 || self.access & ffi::WCUDA_ACCESS_WRITE as u32 != 0
    }

    /// Bytes of a buffer's element; 0 for anything else.
    pub(crate) fn element_bytes(&self) -> u64 {
        scalar_bytes(self.dtype)
    }
}

/// Bytes of a `WCUDA_ARG_…` scalar; 0 for anything else.
pub(crate) fn scalar_bytes(kind: i32) -> u64 {
    match kind {
        ffi::WCUDA_ARG_I8 | ffi::WCUDA_ARG_U8 => 1,
        ffi::WCUDA_ARG_I16 | ffi::WCUDA_ARG_U16 | ffi::WCUDA_ARG_F16 | ffi::WCUDA_ARG_BF16 => 2,
        ffi::WCUDA_ARG_I32 | ffi::WCUDA_ARG_U32 | ffi::WCUDA_ARG_F32 => 4,
        ffi::WCUDA_ARG_I64 | ffi::WCUDA_ARG_U64 | ffi::WCUDA_ARG_F64 => 8,
        _ => 0,
    }
}

impl ParamSpec {
    /// The result is valid as long as `self`.
    pub(crate) fn to_native(&self) -> ffi::wcuda_parameter {
        ffi::wcuda_parameter {
            struct_size: size_of::<ffi::wcuda_parameter>() as u32,
            kind: self.kind,
            name: as_native(&self.name),
            dtype: self.dtype,
            access: self.access,
            layout: self.layout,
            layout_id: self.layout_id,
            shape: as_native(&self.shape),
            min: as_native(&self.min),
            max: as_native(&self.max),
        }
    }
}

/// Enough for most kernels.
const USUAL_SIGNATURE_BYTES: usize = 512;

/// The description of a kernel for a registry, without its code. Empty texts are the defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Descriptor {
    pub(crate) id: u32,
    pub(crate) flags: u32,
    pub(crate) budget_ms: u32,
    pub(crate) name: String,
    pub(crate) params: Vec<ParamSpec>,
    pub(crate) grid: [String; 3],
    pub(crate) block: [String; 3],
    pub(crate) threads: String,
    pub(crate) shared_bytes: String,
    pub(crate) module: String,
}

impl Descriptor {
    fn with_native<R>(
        &self,
        kernel: ffi::wcuda_kernel,
        body: impl FnOnce(&ffi::wcuda_kernel_descriptor) -> R,
    ) -> R {
        let parameters: Vec<_> = self.params.iter().map(ParamSpec::to_native).collect();
        let mut native = ffi::wcuda_kernel_descriptor::init();
        native.flags = self.flags;
        native.kernel_id = self.id;
        native.budget_ms = self.budget_ms;
        native.name = as_native(&self.name);
        native.kernel = kernel;
        native.parameters = parameters.as_ptr();
        native.parameter_count = parameters.len() as u64;
        native.grid = self.grid.each_ref().map(|text| as_native(text));
        native.block = self.block.each_ref().map(|text| as_native(text));
        native.threads = as_native(&self.threads);
        native.shared_bytes = as_native(&self.shared_bytes);
        native.module = as_native(&self.module);
        body(&native)
    }

    /// Each character of an expression may become parentheses, an operator and the index of a parameter.
    fn signature_bytes_max(&self) -> usize {
        let each =
            |param: &ParamSpec| 64 + 8 * (param.shape.len() + param.min.len() + param.max.len());
        self.params.iter().map(each).sum()
    }

    /// Returns the canonical signature and its hash; the message of an error begins with the field.
    pub(crate) fn check(&self) -> Result<(String, u64)> {
        self.with_native(ffi::wcuda_kernel::zeroed(), |native| {
            let (mut hash, mut bytes) = (0, 0);
            let mut check = |text: &mut [u8]| {
                // SAFETY: the descriptor and what it points to live for the call, and `text` has the
                // bytes that are passed.
                call(|error| unsafe {
                    ffi::wcuda_kernel_descriptor_check(
                        native,
                        &mut hash,
                        text.as_mut_ptr().cast(),
                        text.len() as u64,
                        &mut bytes,
                        error,
                    )
                })
            };
            let mut text = vec![0u8; USUAL_SIGNATURE_BYTES];
            let most = self.signature_bytes_max();
            match check(&mut text) {
                Err(error) if error.kind() == ErrorKind::BufferTooSmall => {
                    text.resize(most, 0);
                    check(&mut text)?;
                }
                other => other?,
            }
            text.truncate(bytes as usize);
            let text = String::from_utf8(text)
                .map_err(|_| Error::new(ErrorKind::Internal, "a signature that is no text"))?;
            Ok((text, hash))
        })
    }
}

/// The native registry of a context.
#[derive(Debug)]
pub(crate) struct Registry(ffi::wcuda_registry);

impl Drop for Registry {
    fn drop(&mut self) {
        // SAFETY: legal on any thread.
        unsafe { ffi::wcuda_registry_destroy(self.0) }
    }
}

impl Registry {
    pub(crate) fn new(context: &CudaContext) -> Result<Self> {
        let mut handle = ffi::wcuda_registry::zeroed();
        // SAFETY: `handle` is valid.
        call(|error| unsafe { ffi::wcuda_registry_create(context.handle(), &mut handle, error) })?;
        Ok(Self(handle))
    }

    #[cfg(feature = "zctl")]
    pub(crate) fn native(&self) -> ffi::wcuda_registry {
        self.0
    }

    /// Adds a kernel and returns its number. A `kernel` of 0 means that this backend has no code for it.
    pub(crate) fn add(&self, descriptor: &Descriptor, kernel: ffi::wcuda_kernel) -> Result<u32> {
        descriptor.with_native(kernel, |native| {
            let mut id = 0;
            // SAFETY: the descriptor and what it points to live for the call.
            call(|error| unsafe { ffi::wcuda_registry_add(self.0, native, &mut id, error) })?;
            Ok(id)
        })
    }

    /// Adds a kernel of the catalogue for elements of a `WCUDA_ARG_…`; `id` 0: any.
    pub(crate) fn add_builtin(&self, name: &str, elements: i32, id: u32) -> Result<u32> {
        let mut given = 0;
        // SAFETY: `name` lives for the call.
        call(|error| unsafe {
            ffi::wcuda_registry_add_builtin(
                self.0,
                as_native(name),
                elements,
                id,
                &mut given,
                error,
            )
        })?;
        Ok(given)
    }

    /// Removes the kernel of this name, if it exists.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        let mut found = ffi::wcuda_registered_kernel::init();
        // SAFETY: `name` lives for the call, and `found` is valid and sized.
        let lookup = call(|error| unsafe {
            ffi::wcuda_registry_find(self.0, as_native(name), &mut found, error)
        });
        match lookup {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            other => other?,
        }
        // SAFETY: legal on any thread.
        call(|error| unsafe { ffi::wcuda_registry_remove(self.0, found.kernel_id, error) })
    }

    pub(crate) fn list(&self) -> Result<Vec<RegisteredKernel>> {
        let mut kernels = Vec::new();
        loop {
            let mut count = 0;
            // SAFETY: there are as many entries as the length says, each sized.
            call(|error| unsafe {
                ffi::wcuda_registry_list(
                    self.0,
                    0,
                    kernels.as_mut_ptr(),
                    kernels.len() as u64,
                    &mut count,
                    error,
                )
            })?;
            if count as usize <= kernels.len() {
                kernels.truncate(count as usize);
                return Ok(kernels.iter().map(RegisteredKernel::from_native).collect());
            }
            kernels.resize(count as usize, ffi::wcuda_registered_kernel::init());
        }
    }

    /// Queues a run.
    ///
    /// # Safety
    /// As for [`crate::CudaFunction::launch`], except that the arguments are checked against the descriptor.
    pub(crate) unsafe fn run(&self, id: u32, args: &[GpuArg<'_>]) -> Result<ffi::wcuda_run_info> {
        let natives = natives(args)?;
        let mut info = ffi::wcuda_run_info::init();
        // SAFETY: the arguments point into `args`, which lives; what the code does is the caller's.
        call(|error| unsafe {
            ffi::wcuda_registry_run(
                self.0,
                id,
                natives.as_ptr(),
                natives.len() as u64,
                ffi::wcuda_stream::zeroed(),
                &mut info,
                error,
            )
        })?;
        Ok(info)
    }
}
