//! Registration of a kernel: its parameters and its code.

use std::any::TypeId;
use std::fmt;

use super::host::{HostBody, HostCall};
use crate::compute::module::{GpuArg, Value};
use crate::compute::registry::{Descriptor, ParamSpec};
use crate::core::error::{Error, ErrorKind, Result};
use crate::core::memory::DeviceRepr;
use crate::ffi;

/// The kind that arguments of this type have.
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

#[derive(Clone, Debug)]
pub(super) enum DeviceCode {
    Source(String),
    Binary(Vec<u8>),
}

/// A kernel as it is registered: its name, what its parameters are, and what runs it.
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

    /// [`GpuCompute::run`](super::GpuCompute::run) starts a thread for each of so many, 256 a block. One block without this.
    pub fn threads(mut self, extent: impl IntoIterator<Item = Dim>) -> Self {
        self.descriptor.threads = extent_text(extent);
        self
    }

    /// The blocks and the threads of a block that [`GpuCompute::run`](super::GpuCompute::run) starts, in place of
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

    /// What runs on a host context, in place of device code as [`Fallback`](super::Fallback) says, and in
    /// [`GpuCompute::check_parity`](super::GpuCompute::check_parity). It does the work of all threads.
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

/// What the types of Rust know of the arguments, and the registry does not: the size of a buffer's
/// elements, and that what is written is passed as `&mut`.
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
