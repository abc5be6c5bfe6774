//! Device code: modules, their functions, and launches with typed arguments.
//!
//! ```no_run
//! use worker_cuda::{CudaContext, CudaModule, GpuArg, LaunchConfig, Program};
//! # fn main() -> worker_cuda::Result<()> {
//! const SOURCE: &str = "extern \"C\" __global__ void twice(float* x, int n) {
//!     int i = blockIdx.x * blockDim.x + threadIdx.x;
//!     if (i < n) x[i] *= 2;
//! }";
//! let context = CudaContext::new(0)?;
//! let program = Program::builder(SOURCE).for_device(&context).compile()?;
//! let module = CudaModule::load_program(&context, &program)?;
//! let twice = module.get_function("twice")?;
//! let mut x = context.alloc_from(&[1.0f32; 1000])?;
//! let args = [GpuArg::from(&mut x), 1000i32.into()];
//! // SAFETY: the kernel stays within its first argument, whose length is the second.
//! unsafe { twice.launch(&LaunchConfig::for_elements(1000), &args) }?;
//! drop(args);
//! assert_eq!(x.to_vec()?, [2.0; 1000]);
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::compute::program::{Program, code_pointer};
use crate::core::callback::lock_outside_callbacks;
use crate::core::context::CudaContext;
use crate::core::error::{Error, ErrorKind, Result, call};
use crate::core::memory::{DeviceRepr, SafeCudaPtr};
use crate::core::native_text::{as_native, fixed_text};
use crate::core::stream::{Stream, native};
use crate::ffi;

/// Loaded device code. Cheap to clone; unloaded, after all work of the context, when the last clone and the last
/// function have been dropped.
#[derive(Clone, Debug)]
pub struct CudaModule(Arc<ModuleHandle>);

#[derive(Debug)]
struct ModuleHandle {
    handle: ffi::wcuda_module,
    context: CudaContext,
}

impl Drop for ModuleHandle {
    fn drop(&mut self) {
        // SAFETY: legal on any thread.
        unsafe { ffi::wcuda_module_unload(self.handle) }
    }
}

impl CudaModule {
    fn wrap(context: &CudaContext, handle: ffi::wcuda_module) -> Self {
        Self(Arc::new(ModuleHandle {
            handle,
            context: context.clone(),
        }))
    }

    /// Loads PTX, a cubin or a fatbin; the first bytes determine which.
    pub fn load(context: &CudaContext, code: &[u8]) -> Result<Self> {
        let mut handle = ffi::wcuda_module::zeroed();
        // SAFETY: `code` is valid for its length.
        call(|error| unsafe {
            ffi::wcuda_module_load(
                context.handle(),
                code_pointer(code),
                code.len() as u64,
                &mut handle,
                error,
            )
        })?;
        Ok(Self::wrap(context, handle))
    }

    /// Loads PTX.
    pub fn load_ptx(context: &CudaContext, ptx: &str) -> Result<Self> {
        Self::load(context, ptx.as_bytes())
    }

    /// Loads a compiled program; its expressions can then be used as names of functions.
    pub fn load_program(context: &CudaContext, program: &Program) -> Result<Self> {
        let mut handle = ffi::wcuda_module::zeroed();
        // SAFETY: both handles are live.
        call(|error| unsafe {
            ffi::wcuda_module_load_program(context.handle(), program.handle(), &mut handle, error)
        })?;
        Ok(Self::wrap(context, handle))
    }

    /// Finds a kernel by its name with C linkage, its mangled name, or an expression of the program.
    pub fn get_function(&self, name: &str) -> Result<CudaFunction> {
        let mut options = ffi::wcuda_kernel_options::init();
        options.name = as_native(name);
        options.module = self.0.handle;
        // SAFETY: the name lives for the call; there is no host function.
        unsafe { CudaFunction::create(&self.0.context, &options) }
    }

    /// A variable of the module (`__device__` or `__constant__`) as memory: a view that keeps the module loaded. Its
    /// size must be a multiple of `T`'s.
    ///
    /// # Safety
    /// Only one view of a variable may exist at a time, because each is a `&mut` to the same memory. Kernels that use
    /// the variable and calls on the view must be ordered by the context's own stream or by events.
    pub unsafe fn global<T: DeviceRepr>(&self, name: &str) -> Result<SafeCudaPtr<T>> {
        let mut buffer = ffi::wcuda_buffer::zeroed();
        // SAFETY: `buffer` is valid.
        call(|error| unsafe {
            ffi::wcuda_module_global_create(self.0.handle, as_native(name), &mut buffer, error)
        })?;
        self.0.context.wrap_buffer(buffer)
    }

    /// The context it is loaded in.
    pub fn context(&self) -> &CudaContext {
        &self.0.context
    }

    pub(crate) fn handle(&self) -> ffi::wcuda_module {
        self.0.handle
    }
}

/// Properties of a kernel, as reported by the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct KernelInfo {
    pub name: String,
    pub has_device_code: bool,
    pub has_host_function: bool,
    pub parameter_count: u32,
    pub max_threads_per_block: u32,
    /// Registers per thread.
    pub registers: u32,
    pub static_shared_bytes: u64,
    pub dynamic_shared_bytes_max: u64,
    /// Local memory per thread.
    pub local_bytes: u64,
    pub constant_bytes: u64,
    /// PTX version, major * 10 + minor.
    pub ptx_version: i32,
    /// Architecture of the code, major * 10 + minor.
    pub binary_version: i32,
}

/// Use of a multiprocessor by a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Occupancy {
    /// Blocks that run at the same time.
    pub blocks_per_multiprocessor: u32,
    /// Threads that run at the same time.
    pub threads_per_multiprocessor: u32,
    /// The block size with which most threads run.
    pub best_block_threads: u32,
    /// Fraction of a multiprocessor's threads that run, 0 to 1.
    pub share: f64,
}

/// The shape of a launch. The default is one block of 256 threads.
///
/// ```
/// use worker_cuda::LaunchConfig;
/// # fn main() -> worker_cuda::Result<()> {
/// assert_eq!(LaunchConfig::for_elements(1000).threads(), 1024);
/// assert_eq!(LaunchConfig::new((2, 3), 64).threads(), 2 * 3 * 64);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig<'a> {
    /// Number of blocks: x, y, z.
    pub grid: (u32, u32, u32),
    /// Number of threads per block.
    pub block: (u32, u32, u32),
    /// Number of blocks per cluster; all 0: no clusters.
    pub cluster: (u32, u32, u32),
    /// Bytes of dynamic shared memory per block.
    pub shared_bytes: u32,
    /// All blocks run at the same time and may wait for each other.
    pub cooperative: bool,
    /// None: the context's own stream, which copies use too.
    pub stream: Option<&'a Stream>,
}

impl Default for LaunchConfig<'_> {
    fn default() -> Self {
        Self {
            grid: (1, 1, 1),
            block: (256, 1, 1),
            cluster: (0, 0, 0),
            shared_bytes: 0,
            cooperative: false,
            stream: None,
        }
    }
}

impl<'a> LaunchConfig<'a> {
    /// A launch with a grid and a block.
    pub fn new(grid: impl Into<Dim3>, block: impl Into<Dim3>) -> Self {
        Self {
            grid: grid.into().0,
            block: block.into().0,
            ..Self::default()
        }
    }

    /// One thread for each of `count` elements, 256 per block; at least one block.
    pub fn for_elements(count: u64) -> Self {
        let blocks = count.div_ceil(256).clamp(1, u64::from(u32::MAX >> 1));
        Self {
            grid: (blocks as u32, 1, 1),
            ..Self::default()
        }
    }

    /// Launches on a stream.
    pub fn on(mut self, stream: &'a Stream) -> Self {
        self.stream = Some(stream);
        self
    }

    /// Number of threads of the whole grid.
    pub fn threads(&self) -> u64 {
        let product = |(x, y, z): (u32, u32, u32)| {
            u64::from(x)
                .saturating_mul(u64::from(y))
                .saturating_mul(u64::from(z))
        };
        product(self.grid).saturating_mul(product(self.block))
    }
}

/// Three dimensions, from one, two or three numbers.
#[derive(Clone, Copy, Debug)]
pub struct Dim3((u32, u32, u32));

impl From<u32> for Dim3 {
    fn from(x: u32) -> Self {
        Self((x, 1, 1))
    }
}

impl From<(u32, u32)> for Dim3 {
    fn from((x, y): (u32, u32)) -> Self {
        Self((x, y, 1))
    }
}

impl From<(u32, u32, u32)> for Dim3 {
    fn from(dims: (u32, u32, u32)) -> Self {
        Self(dims)
    }
}

/// One argument of a launch: a number, a struct, or a window of device memory, which it borrows.
///
/// ```
/// # use worker_cuda::{CudaContext, GpuArg};
/// # fn main() -> worker_cuda::Result<()> {
/// let context = CudaContext::host()?;
/// let (a, mut c) = (context.alloc::<f32>(8)?, context.alloc::<f32>(8)?);
/// let args = [GpuArg::from(&a), GpuArg::from(&mut c), GpuArg::from(8i32)];
/// # drop(args);
/// # Ok(())
/// # }
/// ```
pub struct GpuArg<'a> {
    pub(crate) value: Value<'a>,
    borrowed: PhantomData<&'a mut ()>,
}

pub(crate) enum Value<'a> {
    /// The value in the low bytes, in little-endian order.
    Number {
        kind: i32,
        bits: u64,
    },
    Bytes(&'a [u8]),
    Window {
        buffer: ffi::wcuda_buffer,
        offset: u64,
        bytes: u64,
        element_bytes: u64,
        is_mutable: bool,
        /// Of the buffer.
        turn: &'a Mutex<()>,
    },
}

impl<'a> GpuArg<'a> {
    fn make(value: Value<'a>) -> Self {
        Self {
            value,
            borrowed: PhantomData,
        }
    }

    /// An IEEE half, by its bits.
    pub fn f16_bits(bits: u16) -> Self {
        Self::make(Value::Number {
            kind: ffi::WCUDA_ARG_F16,
            bits: bits.into(),
        })
    }

    /// A bfloat16, by its bits.
    pub fn bf16_bits(bits: u16) -> Self {
        Self::make(Value::Number {
            kind: ffi::WCUDA_ARG_BF16,
            bits: bits.into(),
        })
    }

    /// A struct passed by value, as its bytes.
    pub fn bytes(bytes: &'a [u8]) -> Self {
        Self::make(Value::Bytes(bytes))
    }

    /// A range of a buffer, read by the kernel.
    pub fn view<T: DeviceRepr>(buffer: &'a SafeCudaPtr<T>, range: Range<usize>) -> Result<Self> {
        let (offset, bytes) = buffer.checked_range(&range)?;
        Ok(Self::window(buffer, offset, bytes, false))
    }

    /// A range of a buffer, read and written by the kernel.
    pub fn view_mut<T: DeviceRepr>(
        buffer: &'a mut SafeCudaPtr<T>,
        range: Range<usize>,
    ) -> Result<Self> {
        let (offset, bytes) = buffer.checked_range(&range)?;
        Ok(Self::window(buffer, offset, bytes, true))
    }

    /// A range of a buffer of bytes, read as elements of `T`; offset and size are in bytes.
    #[cfg(feature = "seal")]
    pub(crate) fn elements<T: DeviceRepr>(
        buffer: &'a SafeCudaPtr<u8>,
        offset: u64,
        bytes: u64,
    ) -> Self {
        Self::make(Value::Window {
            buffer: buffer.raw_handle(),
            offset,
            bytes,
            element_bytes: size_of::<T>() as u64,
            is_mutable: false,
            turn: buffer.turn(),
        })
    }

    fn window<T: DeviceRepr>(
        buffer: &'a SafeCudaPtr<T>,
        offset: u64,
        bytes: u64,
        is_mutable: bool,
    ) -> Self {
        Self::make(Value::Window {
            buffer: buffer.raw_handle(),
            offset,
            bytes,
            element_bytes: size_of::<T>() as u64,
            is_mutable,
            turn: buffer.turn(),
        })
    }

    /// The same argument with its window replaced by all of another buffer.
    pub(crate) fn moved_to<'b>(&'b self, target: Option<&'b SafeCudaPtr<u8>>) -> GpuArg<'b> {
        GpuArg::make(match (&self.value, target) {
            (Value::Number { kind, bits }, _) => Value::Number {
                kind: *kind,
                bits: *bits,
            },
            (Value::Bytes(bytes), _) => Value::Bytes(bytes),
            (
                Value::Window {
                    buffer,
                    offset,
                    bytes,
                    element_bytes,
                    is_mutable,
                    turn,
                },
                target,
            ) => Value::Window {
                buffer: target.map_or(*buffer, SafeCudaPtr::raw_handle),
                offset: if target.is_some() { 0 } else { *offset },
                bytes: *bytes,
                element_bytes: *element_bytes,
                is_mutable: *is_mutable,
                turn: target.map_or(*turn, SafeCudaPtr::turn),
            },
        })
    }

    /// Bytes that a kernel can access through it.
    pub(crate) fn byte_len(&self) -> u64 {
        match &self.value {
            Value::Window { bytes, .. } => *bytes,
            Value::Bytes(bytes) => bytes.len() as u64,
            Value::Number { .. } => 0,
        }
    }

    /// Valid as long as `self` stays where it is.
    fn to_native(&self) -> Result<ffi::wcuda_argument> {
        let mut argument = ffi::wcuda_argument::init();
        match &self.value {
            Value::Number { kind, bits } => {
                argument.kind = *kind;
                argument.data = std::ptr::from_ref(bits).cast();
            }
            Value::Bytes(bytes) => {
                argument.kind = ffi::WCUDA_ARG_BYTES;
                argument.data = bytes.as_ptr().cast();
                argument.bytes = bytes.len() as u64;
            }
            Value::Window {
                buffer,
                offset,
                bytes,
                is_mutable,
                ..
            } => {
                if *bytes == 0 {
                    let message = "an empty window is no argument";
                    return Err(Error::new(ErrorKind::InvalidArgument, message));
                }
                argument.kind = ffi::WCUDA_ARG_BUFFER;
                argument.access = if *is_mutable {
                    (ffi::WCUDA_ACCESS_READ | ffi::WCUDA_ACCESS_WRITE) as u32
                } else {
                    ffi::WCUDA_ACCESS_READ as u32
                };
                argument.buffer = *buffer;
                argument.offset = *offset;
                argument.bytes = *bytes;
            }
        }
        Ok(argument)
    }
}

impl fmt::Debug for GpuArg<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Value::Number { kind, bits } => write!(f, "GpuArg(kind {kind}, bits {bits:#x})"),
            Value::Bytes(bytes) => write!(f, "GpuArg({} bytes)", bytes.len()),
            Value::Window { offset, bytes, .. } => {
                write!(f, "GpuArg({bytes} bytes of memory at {offset})")
            }
        }
    }
}

macro_rules! numbers {
    ($($number:ty => $kind:ident, $bits:expr;)*) => {$(
        impl From<$number> for GpuArg<'_> {
            fn from(value: $number) -> Self {
                let bits: fn($number) -> u64 = $bits;
                Self::make(Value::Number { kind: ffi::$kind, bits: bits(value) })
            }
        }
    )*};
}

numbers! {
    i8 => WCUDA_ARG_I8, |value| (value as u8).into();
    u8 => WCUDA_ARG_U8, |value| value.into();
    i16 => WCUDA_ARG_I16, |value| (value as u16).into();
    u16 => WCUDA_ARG_U16, |value| value.into();
    i32 => WCUDA_ARG_I32, |value| (value as u32).into();
    u32 => WCUDA_ARG_U32, |value| value.into();
    i64 => WCUDA_ARG_I64, |value| value as u64;
    u64 => WCUDA_ARG_U64, |value| value;
    f32 => WCUDA_ARG_F32, |value| value.to_bits().into();
    f64 => WCUDA_ARG_F64, |value| value.to_bits();
}

impl<'a, T: DeviceRepr> From<&'a SafeCudaPtr<T>> for GpuArg<'a> {
    fn from(buffer: &'a SafeCudaPtr<T>) -> Self {
        Self::window(buffer, 0, buffer.size(), false)
    }
}

impl<'a, T: DeviceRepr> From<&'a mut SafeCudaPtr<T>> for GpuArg<'a> {
    fn from(buffer: &'a mut SafeCudaPtr<T>) -> Self {
        Self::window(buffer, 0, buffer.size(), true)
    }
}

/// The arguments as the library takes them; valid as long as `args` stay where they are.
pub(crate) fn natives(args: &[GpuArg<'_>]) -> Result<Vec<ffi::wcuda_argument>> {
    args.iter().map(GpuArg::to_native).collect()
}

/// Waits until no other thread uses the buffers of these arguments. For calls that run no code of the caller: a host
/// function that waits for a thread that reads the same buffer would wait for ever.
pub(crate) fn take_turns<'a>(args: &'a [GpuArg<'_>]) -> Result<Vec<MutexGuard<'a, ()>>> {
    let turns = args.iter().filter_map(|arg| match arg.value {
        Value::Window { turn, .. } => Some(turn),
        _ => None,
    });
    let mut turns: Vec<&Mutex<()>> = turns.collect();
    // In the same order on all threads, each once.
    turns.sort_by_key(|turn| std::ptr::from_ref(*turn));
    turns.dedup_by_key(|turn| std::ptr::from_ref(*turn));
    turns.into_iter().map(lock_outside_callbacks).collect()
}

/// A kernel of a module, ready to be launched.
///
/// ```no_run
/// # fn main() -> worker_cuda::Result<()> {
/// # use worker_cuda::{CudaContext, CudaModule};
/// # let context = CudaContext::new(0)?;
/// let module = CudaModule::load_ptx(&context, &std::fs::read_to_string("scale.ptx").unwrap())?;
/// let scale = module.get_function("scale")?;
/// let info = scale.info()?;
/// println!("{}: {} registers per thread", info.name, info.registers);
/// let occupancy = scale.occupancy(256, 0)?;
/// println!("{} blocks of 256 threads per SM", occupancy.blocks_per_multiprocessor);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CudaFunction {
    handle: ffi::wcuda_kernel,
    context: CudaContext,
}

impl CudaFunction {
    /// # Safety
    /// `options` and what they point to are valid for the call, the host function's user data until
    /// `host_release` is called.
    pub(crate) unsafe fn create(
        context: &CudaContext,
        options: &ffi::wcuda_kernel_options,
    ) -> Result<Self> {
        let mut handle = ffi::wcuda_kernel::zeroed();
        // SAFETY: by this function's contract.
        call(|error| unsafe {
            ffi::wcuda_kernel_create(context.handle(), options, &mut handle, error)
        })?;
        Ok(Self {
            handle,
            context: context.clone(),
        })
    }

    /// The context it belongs to.
    pub fn context(&self) -> &CudaContext {
        &self.context
    }

    pub(crate) fn handle(&self) -> ffi::wcuda_kernel {
        self.handle
    }

    /// Queues the kernel and does not wait. Number and sizes of the arguments, the configuration and the buffers are
    /// checked before the driver is called. [`ErrorKind::Busy`] while another thread uses one of the buffers.
    ///
    /// # Safety
    /// Device code is not checked: it must stay within the windows of its arguments, write only those passed as
    /// `&mut`, and agree with the arguments' types. Work on other streams that uses the same memory must be ordered
    /// by events.
    pub unsafe fn launch(&self, config: &LaunchConfig<'_>, args: &[GpuArg<'_>]) -> Result<()> {
        let mut launch = ffi::wcuda_launch::init();
        let three = |(x, y, z): (u32, u32, u32)| [x, y, z];
        launch.grid = three(config.grid);
        launch.block = three(config.block);
        launch.cluster = three(config.cluster);
        launch.shared_bytes = config.shared_bytes;
        launch.stream = native(config.stream);
        if config.cooperative {
            launch.flags |= ffi::WCUDA_LAUNCH_COOPERATIVE;
        }
        let natives = natives(args)?;
        // SAFETY: the arguments point into `args`, which lives; what the code does is the caller's.
        call(|error| unsafe {
            ffi::wcuda_kernel_launch(
                self.handle,
                &launch,
                natives.as_ptr(),
                natives.len() as u64,
                error,
            )
        })
    }

    /// Properties of the kernel, as reported by the driver.
    pub fn info(&self) -> Result<KernelInfo> {
        let mut info = ffi::wcuda_kernel_info::init();
        // SAFETY: `info` is valid and sized.
        call(|error| unsafe { ffi::wcuda_kernel_info_get(self.handle, &mut info, error) })?;
        Ok(KernelInfo {
            name: fixed_text(&info.name),
            has_device_code: info.has_device_code != 0,
            has_host_function: info.has_host_function != 0,
            parameter_count: info.parameter_count,
            max_threads_per_block: info.max_threads_per_block,
            registers: info.register_count,
            static_shared_bytes: info.static_shared_bytes,
            dynamic_shared_bytes_max: info.dynamic_shared_bytes_max,
            local_bytes: info.local_bytes,
            constant_bytes: info.constant_bytes,
            ptx_version: info.ptx_version,
            binary_version: info.binary_version,
        })
    }

    /// Use of a multiprocessor by blocks of that many threads.
    pub fn occupancy(&self, block_threads: u32, shared_bytes: u64) -> Result<Occupancy> {
        let mut found = ffi::wcuda_occupancy::init();
        // SAFETY: `found` is valid and sized.
        call(|error| unsafe {
            ffi::wcuda_kernel_occupancy_get(
                self.handle,
                block_threads,
                shared_bytes,
                &mut found,
                error,
            )
        })?;
        Ok(Occupancy {
            blocks_per_multiprocessor: found.blocks_per_multiprocessor,
            threads_per_multiprocessor: found.threads_per_multiprocessor,
            best_block_threads: found.best_block_threads,
            share: found.share,
        })
    }
}

impl Drop for CudaFunction {
    fn drop(&mut self) {
        // SAFETY: legal on any thread, also while registries and runs keep the kernel.
        unsafe { ffi::wcuda_kernel_destroy(self.handle) }
    }
}
