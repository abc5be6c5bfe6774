//! Matrix products: `c = activation(alpha · op(a) · op(b) + beta · c + bias)`, row-major.

use crate::compute::catalogue::ElementType;
use crate::compute::module::{GpuArg, Value, natives, take_turns};
use crate::core::context::CudaContext;
use crate::core::error::{Error, ErrorKind, Result, call};
use crate::core::stream::{Stream, native};
use crate::ffi;

/// Types of the operands of a product. Sums are always `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GemmType {
    /// `f32`.
    F32,
    /// `f32`, of which the tensor cores use 10 bits of the fraction.
    Tf32,
    /// IEEE halves, as the bits of `u16`.
    F16,
    /// bfloat16, as the bits of `u16`.
    Bf16,
    /// FP8 e4m3, as the bits of `u8`; on CUDA of capability 8.9 or newer. There, a plain `a`, a transposed `b`, and
    /// `k`, rows of `c` and strides in multiples of 16 bytes are used in place; other operands are copied through
    /// scratch.
    Fp8,
    /// Not implemented: [`ErrorKind::NotAvailable`].
    F64,
    /// Not implemented: [`ErrorKind::NotAvailable`].
    Int8,
}

impl GemmType {
    fn to_native(self) -> i32 {
        match self {
            Self::F32 => ffi::WCUDA_GEMM_F32,
            Self::Tf32 => ffi::WCUDA_GEMM_TF32,
            Self::F16 => ffi::WCUDA_GEMM_F16,
            Self::Bf16 => ffi::WCUDA_GEMM_BF16,
            Self::Fp8 => ffi::WCUDA_GEMM_FP8,
            Self::F64 => ffi::WCUDA_GEMM_F64,
            Self::Int8 => ffi::WCUDA_GEMM_INT8,
        }
    }

    fn element_bytes(self) -> u64 {
        match self {
            Self::F32 | Self::Tf32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Fp8 | Self::Int8 => 1,
            Self::F64 => 8,
        }
    }

    fn output(self) -> ElementType {
        match self {
            Self::F16 => ElementType::F16,
            Self::Bf16 | Self::Fp8 => ElementType::Bf16,
            _ => ElementType::F32,
        }
    }
}

/// Function applied to each element of a product last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activation {
    /// No function.
    #[default]
    None,
    /// Negative values become 0.
    Relu,
    /// `0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))`.
    Gelu,
}

/// Whether CUDA contexts can use cuBLASLt: [`ErrorKind::NotAvailable`] with the reason if the library is missing.
/// [`Gemm::run`] then fails on CUDA.
pub fn gemm_library() -> Result<()> {
    // SAFETY: takes nothing but the error.
    call(|error| unsafe { ffi::wcuda_gemm_library_check(error) })
}

/// A product to be queued, created by [`CudaContext::gemm`]. Section 20 of `worker_cuda.h` states the bound of its
/// error.
#[derive(Debug)]
#[must_use = "nothing is multiplied until `run` is called"]
pub struct Gemm<'a> {
    context: &'a CudaContext,
    kind: GemmType,
    output: ElementType,
    native: ffi::wcuda_gemm,
    bias: Option<GpuArg<'a>>,
    stream: Option<&'a Stream>,
}

impl CudaContext {
    /// A product of `op(a)` (m, k) and `op(b)` (k, n), computed by cuBLASLt on CUDA and by the processors on the host
    /// backend. Equal shapes give the same bits every time.
    ///
    /// ```
    /// # use worker_cuda::{Activation, CudaContext, GemmType};
    /// # fn main() -> worker_cuda::Result<()> {
    /// let context = CudaContext::host()?;
    /// let a = context.alloc_from(&[1.0f32, 2.0, 3.0, 4.0])?; // (2, 2)
    /// let bias = context.alloc_from(&[-8.0f32, 0.0])?;
    /// let mut c = context.alloc::<f32>(4)?;
    /// context
    ///     .gemm(GemmType::F32, 2, 2, 2)
    ///     .bias(&bias)
    ///     .activation(Activation::Relu)
    ///     .run(&a, &a, &mut c)?;
    /// assert_eq!(c.to_vec()?, [0.0, 10.0, 7.0, 22.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn gemm(&self, kind: GemmType, m: usize, n: usize, k: usize) -> Gemm<'_> {
        let mut native = ffi::wcuda_gemm::init();
        native.r#type = kind.to_native();
        native.alpha = 1.0;
        native.m = m as u64;
        native.n = n as u64;
        native.k = k as u64;
        Gemm {
            context: self,
            kind,
            output: kind.output(),
            native,
            bias: None,
            stream: None,
        }
    }
}

impl<'a> Gemm<'a> {
    /// `a` is stored as (k, m).
    pub fn transpose_a(mut self) -> Self {
        self.native.flags |= ffi::WCUDA_GEMM_TRANSPOSE_A;
        self
    }

    /// `b` is stored as (n, k).
    pub fn transpose_b(mut self) -> Self {
        self.native.flags |= ffi::WCUDA_GEMM_TRANSPOSE_B;
        self
    }

    /// Factor of the product; default 1.
    pub fn alpha(mut self, alpha: f32) -> Self {
        self.native.alpha = alpha;
        self
    }

    /// Factor of the previous contents of `c`; default 0, which does not read `c`.
    pub fn beta(mut self, beta: f32) -> Self {
        self.native.beta = beta;
        self
    }

    /// Type of `c` and the bias. Default: `f32` for `F32` and `Tf32`, which have no other; the inputs' type for `F16`
    /// and `Bf16`; bfloat16 for `Fp8`.
    pub fn output(mut self, output: ElementType) -> Self {
        self.output = output;
        self
    }

    /// Number of products of the same shape.
    pub fn batch(mut self, count: usize) -> Self {
        self.native.batch = count as u64;
        if count == 0 {
            (self.native.m, self.native.n) = (0, 0); // nothing, not the default of one
        }
        self
    }

    /// Elements between the starts of consecutive stored rows of `a`, `b` and `c`; 0: contiguous.
    pub fn row_strides(mut self, a: usize, b: usize, c: usize) -> Self {
        self.native.row_stride_a = a as u64;
        self.native.row_stride_b = b as u64;
        self.native.row_stride_c = c as u64;
        self
    }

    /// Elements between the starts of consecutive matrices of a batch; 0: contiguous.
    pub fn batch_strides(mut self, a: usize, b: usize, c: usize) -> Self {
        self.native.batch_stride_a = a as u64;
        self.native.batch_stride_b = b as u64;
        self.native.batch_stride_c = c as u64;
        self
    }

    /// Vector (n) of the type of `c`, added to every row. For an `Fp8` product into `f32` it is bfloat16.
    pub fn bias(mut self, bias: impl Into<GpuArg<'a>>) -> Self {
        self.bias = Some(bias.into());
        self
    }

    /// Function applied to each element last.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.native.activation = match activation {
            Activation::None => ffi::WCUDA_ACTIVATION_NONE,
            Activation::Relu => ffi::WCUDA_ACTIVATION_RELU,
            Activation::Gelu => ffi::WCUDA_ACTIVATION_GELU,
        };
        self
    }

    /// Queues it on `stream` instead of the context's own, which copies follow.
    pub fn on(mut self, stream: &'a Stream) -> Self {
        self.stream = Some(stream);
        self
    }

    /// Queues the product and does not wait. Operands are buffers or windows ([`GpuArg::view`]), whose sizes are
    /// checked. [`ErrorKind::NotAvailable`] if cuBLASLt is missing or does not support the product.
    pub fn run<'b>(
        mut self,
        a: impl Into<GpuArg<'b>>,
        b: impl Into<GpuArg<'b>>,
        c: impl Into<GpuArg<'b>>,
    ) -> Result<()>
    where
        'a: 'b,
    {
        let bytes = |output| match output {
            ElementType::F32 => 4,
            _ => 2,
        };
        let into_f32 = self.kind == GemmType::Fp8 && self.output == ElementType::F32;
        let bias_bytes = if into_f32 { 2 } else { bytes(self.output) };
        self.native.output_type = match self.output {
            ElementType::F32 => ffi::WCUDA_ARG_F32,
            ElementType::F16 => ffi::WCUDA_ARG_F16,
            ElementType::Bf16 => ffi::WCUDA_ARG_BF16,
        };
        let mut args: Vec<GpuArg<'b>> = vec![a.into(), b.into(), c.into()];
        args.extend(self.bias.take());
        let element = self.kind.element_bytes();
        let wanted = [element, element, bytes(self.output), bias_bytes];
        for ((arg, wanted), name) in args.iter().zip(wanted).zip(["a", "b", "c", "bias"]) {
            check(arg, name, wanted)?;
        }
        let natives = natives(&args)?;
        let _turns = take_turns(&args)?;
        // SAFETY: the arguments point into `args`, which lives; sizes are checked by the library, and that
        // `c` is borrowed as `&mut` by `check`.
        call(|error| unsafe {
            ffi::wcuda_gemm_run(
                self.context.handle(),
                &self.native,
                natives.as_ptr(),
                natives.len() as u64,
                native(self.stream),
                error,
            )
        })
    }
}

fn check(arg: &GpuArg<'_>, name: &str, wanted: u64) -> Result<()> {
    let wrong = |what: String| {
        let message = format!("{name} {what}");
        Err(Error::new(ErrorKind::InvalidArgument, message))
    };
    let Value::Window {
        element_bytes,
        is_mutable,
        ..
    } = &arg.value
    else {
        return wrong("is no memory".to_owned());
    };
    if *element_bytes != wanted {
        return wrong(format!(
            "has elements of {element_bytes} bytes, the product takes {wanted}"
        ));
    }
    if name == "c" && !is_mutable {
        return wrong("is written and must be passed as &mut".to_owned());
    }
    Ok(())
}
