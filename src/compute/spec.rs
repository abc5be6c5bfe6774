//! Registration of a kernel: its parameters and its code.

use std::any::TypeId;
use std::fmt;

use super::host::{HostBody, HostCall};
use crate::compute::module::{GpuArg, Value};
use crate::compute::registry::{Descriptor, ParamSpec};
use crate::core::error::{Error, ErrorKind, Result};
use crate::core::memory::DeviceRepr;
use crate::ffi;

/// The kind of arguments of this type.
pub(super) fn kind_of<T: DeviceRepr>() -> i32 {
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
    /// A constant.
    Count(u64),
    /// An expression.
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

#[derive(Clone, Debug)]
pub(super) enum DeviceCode {
    Source(String),
    Binary(Vec<u8>),
}

/// A kernel to register: its name, its parameters, and its code.
///
/// ```
/// use worker_cuda::{CudaContext, GpuCompute, KernelSpec};
/// # fn main() -> worker_cuda::Result<()> {
/// const SOURCE: &str = "extern \"C\" __global__ void add(const float* a, float* b, int n) {
///     int i = blockIdx.x * blockDim.x + threadIdx.x;
///     if (i < n) b[i] += a[i];
/// }";
/// let spec = KernelSpec::new("add")
///     .read::<f32>("a", ["n".into()])
///     .write::<f32>("b", ["n".into()])
///     .scalar::<i32>("n")
///     .within(1, 1 << 20)
///     .threads(["n".into()])
///     .host(|call| {
///         let n = call.value::<i32>(2)? as usize;
///         let a = call.slice::<f32>(0)?;
///         let b = call.slice_mut::<f32>(1)?;
///         b[..n].iter_mut().zip(a).for_each(|(b, a)| *b += a);
///         Ok(())
///     });
/// // SAFETY: the code stays within the extents and has the declared types.
/// let spec = unsafe { spec.source(SOURCE) };
/// GpuCompute::with_context(&CudaContext::host()?)?.register(spec)?;
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing happens until it is registered"]
pub struct KernelSpec {
    pub(super) descriptor: Descriptor,
    pub(super) entry: Option<String>,
    pub(super) device: Option<DeviceCode>,
    pub(super) host: Option<HostBody>,
}

impl KernelSpec {
    /// `name` is the kernel's name in its device code (with C linkage, or an expression such as `scale<float>`),
    /// unless [`KernelSpec::entry`] sets another.
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

    /// The kernel's name in the device code.
    pub fn entry(mut self, entry: impl Into<String>) -> Self {
        self.entry = Some(entry.into());
        self
    }

    /// The kernel's number, at least 3; default: assigned by the registry.
    pub fn id(mut self, id: u32) -> Self {
        self.descriptor.id = id;
        self
    }

    /// Equal calls may give different bits.
    pub fn non_deterministic(mut self) -> Self {
        self.descriptor.flags |= ffi::WCUDA_KERNEL_NON_DETERMINISTIC;
        self
    }

    /// A run that takes longer fails with [`ErrorKind::Timeout`].
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

    /// The next parameter is memory that is read; its size is the product of `extent`, in elements.
    pub fn read<T: DeviceRepr>(self, name: &str, extent: impl IntoIterator<Item = Dim>) -> Self {
        self.buffer::<T>(name, ffi::WCUDA_ACCESS_READ, extent)
    }

    /// The next parameter is memory that is written, and may be read.
    pub fn write<T: DeviceRepr>(self, name: &str, extent: impl IntoIterator<Item = Dim>) -> Self {
        let access = ffi::WCUDA_ACCESS_READ | ffi::WCUDA_ACCESS_WRITE;
        self.buffer::<T>(name, access, extent)
    }

    /// The next parameter is a scalar.
    pub fn scalar<T: DeviceRepr>(mut self, name: &str) -> Self {
        self.descriptor.params.push(ParamSpec {
            name: name.to_owned(),
            kind: kind_of::<T>(),
            ..ParamSpec::default()
        });
        self
    }

    /// Bounds of the preceding scalar parameter: expressions over integer parameters for an integer, numbers for an
    /// `f32` or `f64`; "" is no bound.
    pub fn within(mut self, min: impl ToString, max: impl ToString) -> Self {
        if let Some(param) = self.descriptor.params.last_mut() {
            (param.min, param.max) = (min.to_string(), max.to_string());
        }
        self
    }

    /// Number of threads that [`GpuCompute::run`](super::GpuCompute::run) starts, 256 per block; default one block.
    pub fn threads(mut self, extent: impl IntoIterator<Item = Dim>) -> Self {
        self.descriptor.threads = extent_text(extent);
        self
    }

    /// The grid and the block of [`GpuCompute::run`](super::GpuCompute::run), instead of
    /// [`KernelSpec::threads`]: x, y, z as expressions, "" for 1.
    pub fn launch(mut self, grid: [&str; 3], block: [&str; 3]) -> Self {
        self.descriptor.grid = grid.map(str::to_owned);
        self.descriptor.block = block.map(str::to_owned);
        self
    }

    /// Dynamic shared memory per block, as an expression.
    pub fn shared_bytes(mut self, bytes: impl ToString) -> Self {
        self.descriptor.shared_bytes = bytes.to_string();
        self
    }

    /// The function that runs on a host context, instead of device code if [`Fallback`](super::Fallback) allows, and
    /// in
    /// [`GpuCompute::check_parity`](super::GpuCompute::check_parity). It does the work of all threads.
    pub fn host(
        mut self,
        body: impl Fn(&HostCall<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.host = Some(Box::new(body));
        self
    }

    /// CUDA C++ for CUDA contexts, compiled when the kernel is registered.
    ///
    /// # Safety
    /// For any values of its scalars, the kernel accesses no memory outside the declared extents, writes only
    /// arguments declared as written, and its parameters have the declared types.
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

/// Checks what Rust's types state about the arguments and the registry does not know: the element size of a buffer,
/// and that written arguments are passed as `&mut`.
pub(super) fn check_types(params: &[ParamSpec], args: &[GpuArg<'_>]) -> Result<()> {
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
