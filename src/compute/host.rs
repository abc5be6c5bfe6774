//! Kernels as closures: what they are given, and how the library calls them.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::fmt;
use std::time::{Duration, Instant};

use super::spec::kind_of;
use crate::compute::registry::ParamSpec;
use crate::core::callback::ParkedPanic;
use crate::core::error::{Error, ErrorKind, Result};
use crate::core::memory::DeviceRepr;
use crate::ffi;

pub(crate) type HostBody = Box<dyn Fn(&HostCall<'_>) -> Result<()> + Send + Sync>;

/// What a host function is given: the shape of the launch, and its arguments by index.
pub struct HostCall<'a> {
    launch: &'a ffi::wcuda_launch,
    args: &'a [ffi::wcuda_host_argument],
    params: &'a [ParamSpec],
    /// Memory that has been borrowed to be written, which happens once a call.
    taken: RefCell<Vec<bool>>,
}

impl<'a> HostCall<'a> {
    /// Blocks: x, y, z.
    pub fn grid(&self) -> [u32; 3] {
        self.launch.grid
    }

    /// Threads of a block.
    pub fn block(&self) -> [u32; 3] {
        self.launch.block
    }

    fn arg(&self, index: usize) -> Result<(&'a ffi::wcuda_host_argument, &'a ParamSpec)> {
        match (self.args.get(index), self.params.get(index)) {
            (Some(arg), Some(param)) => Ok((arg, param)),
            _ => Err(Error::new(
                ErrorKind::OutOfRange,
                format!("argument {index} of {}", self.args.len()),
            )),
        }
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

    /// Memory declared as read.
    pub fn slice<T: DeviceRepr>(&self, index: usize) -> Result<&'a [T]> {
        let (data, len) = self.elements::<T>(index, false)?;
        // SAFETY: the library has checked the window, which lives for the call; nothing writes it, for
        // what is written is borrowed as `&mut` by the launch and thus another buffer.
        Ok(unsafe { std::slice::from_raw_parts(data, len) })
    }

    /// Memory declared as written; once a call.
    pub fn slice_mut<T: DeviceRepr>(&self, index: usize) -> Result<&'a mut [T]> {
        let (data, len) = self.elements::<T>(index, true)?;
        let mut taken = self.taken.borrow_mut();
        taken.resize(self.args.len(), false);
        if std::mem::replace(&mut taken[index], true) {
            let message = format!("argument {index} is borrowed already");
            return Err(Error::new(ErrorKind::InvalidState, message));
        }
        // SAFETY: as above; the launch borrows the buffer as `&mut`, and this is the only slice of it.
        Ok(unsafe { std::slice::from_raw_parts_mut(data, len) })
    }

    /// A number.
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
            .field("args", &self.args.len())
            .finish_non_exhaustive()
    }
}

/// A closure behind a native host function.
pub(super) struct HostFunction {
    pub(super) body: HostBody,
    pub(super) params: Vec<ParamSpec>,
}

thread_local! {
    /// What a host function answered: it runs on the thread that launches.
    static HOST_ERROR: Cell<Option<Error>> = const { Cell::new(None) };
    static HOST_PANIC: ParkedPanic = ParkedPanic::default();
}

pub(super) unsafe extern "C" fn run_host_function(
    user: *mut c_void,
    launch: *const ffi::wcuda_launch,
    args: *const ffi::wcuda_host_argument,
    count: u64,
) -> i32 {
    // SAFETY: `user` is the HostFunction that the kernel keeps; the rest is valid for the call.
    let (function, launch, args) = unsafe {
        (
            &*user.cast::<HostFunction>(),
            &*launch,
            match count {
                0 => &[][..],
                _ => std::slice::from_raw_parts(args, count as usize),
            },
        )
    };
    let call = HostCall {
        launch,
        args,
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

/// Makes a launch, and takes what a host function answered or panicked with. The time is of the call.
pub(super) fn told_by_host<T>(launch: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    HOST_ERROR.set(None);
    let clock = Instant::now();
    let launched = launch();
    let time = clock.elapsed();
    HOST_PANIC.with(ParkedPanic::resume);
    let launched = launched.map_err(|error| HOST_ERROR.take().unwrap_or(error))?;
    Ok((launched, time))
}
