//! Kernels as closures: their arguments, and how the library calls them.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::spec::kind_of;
use crate::compute::module::CudaFunction;
use crate::compute::registry::ParamSpec;
use crate::core::callback::{ParkedPanic, drop_caught};
use crate::core::context::CudaContext;
use crate::core::error::{Error, ErrorKind, Result};
use crate::core::memory::DeviceRepr;
use crate::ffi;

pub(crate) type HostBody = Box<dyn Fn(&HostCall<'_>) -> Result<()> + Send + Sync>;

/// The argument of a host function: the shape of the launch, and the kernel's arguments by index.
///
/// ```
/// use worker_cuda::{CudaContext, GpuArg, GpuCompute, KernelSpec};
/// # fn main() -> worker_cuda::Result<()> {
/// let compute = GpuCompute::with_context(&CudaContext::host()?)?;
/// let scale = KernelSpec::new("scale")
///     .write::<f32>("x", ["n".into()])
///     .scalar::<u32>("n")
///     .scalar::<f32>("by")
///     .host(|call| {
///         let (n, by) = (call.value::<u32>(1)? as usize, call.value::<f32>(2)?);
///         call.slice_mut::<f32>(0)?[..n].iter_mut().for_each(|x| *x *= by);
///         Ok(())
///     });
/// compute.register(scale)?;
/// let mut x = compute.device().upload(&[1.0f32, 2.0])?;
/// compute.run("scale", &[GpuArg::from(&mut x), 2u32.into(), 3.0f32.into()])?;
/// assert_eq!(x.to_vec()?, [3.0, 6.0]);
/// # Ok(())
/// # }
/// ```
pub struct HostCall<'a> {
    launch: &'a ffi::wcuda_launch,
    args: Arguments,
    params: &'a [ParamSpec],
    /// Arguments that have been borrowed mutably, which is allowed once per call.
    taken: RefCell<Vec<bool>>,
}

/// The library's array of arguments, with the element size of the library that made it.
struct Arguments {
    first: *const ffi::wcuda_host_argument,
    stride: usize,
    count: usize,
}

impl<'a> HostCall<'a> {
    /// Number of blocks: x, y, z.
    pub fn grid(&self) -> [u32; 3] {
        self.launch.grid
    }

    /// Number of threads per block.
    pub fn block(&self) -> [u32; 3] {
        self.launch.block
    }

    fn arg(&self, index: usize) -> Result<(&'a ffi::wcuda_host_argument, &'a ParamSpec)> {
        let Some(param) = self.params.get(index).filter(|_| index < self.args.count) else {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                format!("argument {index} of {}", self.args.count),
            ));
        };
        // SAFETY: the array lives for the call, and a newer library's elements begin with these fields.
        let arg = unsafe { &*self.args.first.byte_add(index * self.args.stride) };
        Ok((arg, param))
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

    /// An argument declared as read.
    pub fn slice<T: DeviceRepr>(&self, index: usize) -> Result<&'a [T]> {
        let (data, len) = self.elements::<T>(index, false)?;
        // SAFETY: the library has checked the window, which lives for the call; nothing writes it, for
        // what is written is borrowed as `&mut` by the launch and thus another buffer.
        Ok(unsafe { std::slice::from_raw_parts(data, len) })
    }

    /// An argument declared as written; can be borrowed once per call.
    pub fn slice_mut<T: DeviceRepr>(&self, index: usize) -> Result<&'a mut [T]> {
        let (data, len) = self.elements::<T>(index, true)?;
        let mut taken = self.taken.borrow_mut();
        taken.resize(self.args.count, false);
        if std::mem::replace(&mut taken[index], true) {
            let message = format!("argument {index} is borrowed already");
            return Err(Error::new(ErrorKind::InvalidState, message));
        }
        // SAFETY: as above; the launch borrows the buffer as `&mut`, and this is the only slice of it.
        Ok(unsafe { std::slice::from_raw_parts_mut(data, len) })
    }

    /// The bytes of an argument that is no memory: of a struct, or of a scalar, an IEEE half for example.
    pub fn bytes(&self, index: usize) -> Result<&'a [u8]> {
        let (arg, param) = self.arg(index)?;
        if param.is_buffer() || arg.kind == ffi::WCUDA_ARG_BUFFER {
            let message = format!("argument {index} ('{}') is memory", param.name);
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        // SAFETY: the library has checked that the value has these bytes, which live for the call.
        Ok(unsafe { std::slice::from_raw_parts(arg.data.cast(), arg.bytes as usize) })
    }

    /// A scalar argument.
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
            .field("args", &self.args.count)
            .finish_non_exhaustive()
    }
}

/// A closure as a native host function. Every native kernel that runs it holds a reference of its own, which the
/// library releases when the kernel can no longer run.
pub(super) struct HostFunction {
    pub(super) body: HostBody,
    pub(super) params: Vec<ParamSpec>,
}

/// Creates a kernel, with `host` as its host function if given.
///
/// # Safety
/// As for [`CudaFunction::create`], the host function apart.
pub(super) unsafe fn create_kernel(
    context: &CudaContext,
    mut options: ffi::wcuda_kernel_options,
    host: Option<&Arc<HostFunction>>,
) -> Result<CudaFunction> {
    let Some(host) = host else {
        // SAFETY: by this function's contract.
        return unsafe { CudaFunction::create(context, &options) };
    };
    let reference = Arc::into_raw(host.clone());
    options.host = Some(run_host_function);
    options.host_user = reference.cast_mut().cast();
    options.host_release = Some(release_host_function);
    // SAFETY: the reference lives until `release_host_function` is called.
    unsafe { CudaFunction::create(context, &options) }.inspect_err(|_| {
        // SAFETY: a kernel that was not created releases nothing.
        drop(unsafe { Arc::from_raw(reference) });
    })
}

/// # Safety
/// `user` is the reference that `create_kernel` passed to the library, and nothing uses it any more.
unsafe extern "C" fn release_host_function(user: *mut c_void) {
    // SAFETY: by this function's contract.
    let host = unsafe { Arc::from_raw(user.cast_const().cast::<HostFunction>()) };
    // What the closure has captured may panic when it is dropped.
    drop_caught(host);
}

thread_local! {
    /// The error of a host function, which runs on the thread that launches.
    static HOST_ERROR: Cell<Option<Error>> = const { Cell::new(None) };
    static HOST_PANIC: ParkedPanic = ParkedPanic::default();
}

unsafe extern "C" fn run_host_function(
    user: *mut c_void,
    launch: *const ffi::wcuda_launch,
    args: *const ffi::wcuda_host_argument,
    count: u64,
) -> i32 {
    // SAFETY: `user` is the reference that the kernel holds; the rest is valid for the call.
    let (function, launch) = unsafe { (&*user.cast::<HostFunction>(), &*launch) };
    let stride = match count {
        0 => 0,
        // SAFETY: there is a first argument.
        _ => unsafe { (*args).struct_size },
    };
    let call = HostCall {
        launch,
        args: Arguments {
            first: args,
            stride: stride as usize,
            count: count as usize,
        },
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

/// Runs a launch and measures the call. An error of the host function itself replaces the library's, and its panic
/// is resumed.
pub(super) fn timed_launch<T>(launch: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    HOST_ERROR.set(None);
    let clock = Instant::now();
    let launched = launch();
    let time = clock.elapsed();
    HOST_PANIC.with(ParkedPanic::resume);
    let launched = launched.map_err(|error| HOST_ERROR.take().unwrap_or(error))?;
    Ok((launched, time))
}

/// Call this after a call that reports a panic of a host function as a failure, so that a later call does not.
#[cfg(feature = "zctl")]
pub(crate) fn forget_failures() {
    HOST_PANIC.with(ParkedPanic::forget);
    HOST_ERROR.set(None);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_a_newer_library_are_further_apart() {
        #[repr(C)]
        struct Newer {
            argument: ffi::wcuda_host_argument,
            added_later: u64,
        }
        let mut values = [1.5f32, 2.5, 4.0];
        let args = values.each_mut().map(|value| Newer {
            argument: ffi::wcuda_host_argument {
                struct_size: size_of::<Newer>() as u32,
                kind: kind_of::<f32>(),
                data: std::ptr::from_mut(value).cast(),
                bytes: 4,
            },
            added_later: u64::MAX,
        });
        let body: HostBody = Box::new(|call| {
            let seen = [
                call.value::<f32>(0)?,
                call.value::<f32>(1)?,
                call.value::<f32>(2)?,
            ];
            assert_eq!(seen, [1.5, 2.5, 4.0]);
            assert_eq!(
                call.value::<f32>(3).unwrap_err().kind(),
                ErrorKind::OutOfRange
            );
            Ok(())
        });
        let params = vec![ParamSpec::default(); 4];
        let function = HostFunction { body, params };
        let user = std::ptr::from_ref(&function).cast_mut().cast();
        let launch = ffi::wcuda_launch::init();
        // SAFETY: all of them live for the call; the structs say their size.
        let status = unsafe { run_host_function(user, &launch, args.as_ptr().cast(), 3) };
        HOST_PANIC.with(ParkedPanic::resume);
        assert_eq!(status, 0);
    }
}
