//! Built-in kernels, which every context can run by name, and a network of linear layers.

use crate::compute::module::{GpuArg, natives, take_turns};
use crate::core::context::CudaContext;
use crate::core::error::{Error, ErrorKind, Result, call};
use crate::core::memory::SafeCudaPtr;
use crate::core::native_text::{as_native, as_str};
use crate::core::stream::{Stream, native};
use crate::ffi;

/// Element type of a catalogue kernel's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ElementType {
    /// `f32`.
    #[default]
    F32,
    /// IEEE halves, as the bits of `u16`.
    F16,
    /// bfloat16, as the bits of `u16`.
    Bf16,
}

impl ElementType {
    /// As `WCUDA_ARG_…`.
    pub(crate) fn kind(self) -> i32 {
        match self {
            Self::F32 => ffi::WCUDA_ARG_F32,
            Self::F16 => ffi::WCUDA_ARG_F16,
            Self::Bf16 => ffi::WCUDA_ARG_BF16,
        }
    }
}

/// A kernel of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BuiltinKernel {
    /// The name.
    pub name: String,
    /// Its parameters: `x: read T[n], y: write T[n], n: i64`. `T` is the element type of the call; an `i64`
    /// accepts an integer of any width, and a scalar `f32` an `f64` too.
    pub signature: String,
    /// Number of arguments.
    pub parameter_count: u32,
    /// Whether it supports `f32` only.
    pub is_f32_only: bool,
}

/// The kernels that every context can run, by name.
///
/// ```
/// # fn main() -> worker_cuda::Result<()> {
/// let kernels = worker_cuda::catalogue()?;
/// assert!(kernels.iter().any(|kernel| kernel.name == "softmax"));
/// # Ok(())
/// # }
/// ```
pub fn catalogue() -> Result<Vec<BuiltinKernel>> {
    let mut count = 0;
    // SAFETY: no entries are asked for.
    call(|error| unsafe {
        ffi::wcuda_catalogue_list(0, std::ptr::null_mut(), 0, &mut count, error)
    })?;
    let mut kernels = vec![ffi::wcuda_catalogue_entry::init(); count as usize];
    // SAFETY: there is room for as many entries, each sized.
    call(|error| unsafe {
        ffi::wcuda_catalogue_list(0, kernels.as_mut_ptr(), count, &mut count, error)
    })?;
    kernels
        .iter()
        .map(|kernel| {
            Ok(BuiltinKernel {
                // SAFETY: static text.
                name: unsafe { as_str(kernel.name)? }.to_owned(),
                signature: signature(kernel)?,
                parameter_count: kernel.parameter_count,
                is_f32_only: kernel.is_f32_only != 0,
            })
        })
        .collect()
}

fn signature(kernel: &ffi::wcuda_catalogue_entry) -> Result<String> {
    // Listed for f16, the buffers of the call's type differ from those that are always f32.
    let (elements, letter) = match kernel.is_f32_only {
        0 => (ffi::WCUDA_ARG_F16, "T"),
        _ => (ffi::WCUDA_ARG_F32, "f32"),
    };
    let mut count = u64::from(kernel.parameter_count);
    let mut parameters = vec![ffi::wcuda_parameter::init(); count as usize];
    // SAFETY: there is room for as many parameters, each sized; the name is static text.
    call(|error| unsafe {
        ffi::wcuda_catalogue_parameter_list(
            kernel.name,
            elements,
            0,
            parameters.as_mut_ptr(),
            count,
            &mut count,
            error,
        )
    })?;
    let mut text = String::new();
    for parameter in &parameters {
        // SAFETY: static texts.
        let (name, shape) = unsafe { (as_str(parameter.name)?, as_str(parameter.shape)?) };
        let access = match parameter.access as i32 {
            ffi::WCUDA_ACCESS_READ => "read ",
            ffi::WCUDA_ACCESS_WRITE => "write ",
            _ => "read write ",
        };
        let separator = if text.is_empty() { "" } else { ", " };
        text += &match parameter.kind {
            ffi::WCUDA_ARG_BUFFER => format!(
                "{separator}{name}: {access}{}[{shape}]",
                match parameter.dtype {
                    ffi::WCUDA_ARG_I32 => "i32",
                    dtype if dtype == elements => letter,
                    _ => "f32",
                }
            ),
            ffi::WCUDA_ARG_F32 => format!("{separator}{name}: f32"),
            _ => format!("{separator}{name}: i64"),
        };
    }
    Ok(text)
}

impl CudaContext {
    /// Runs a kernel of the [`catalogue`] on a stream (None: the context's own, which copies follow) and does not
    /// wait. Number, kinds, sizes and overlaps of the arguments are checked first.
    ///
    /// ```
    /// # use worker_cuda::{CudaContext, ElementType, GpuArg};
    /// # fn main() -> worker_cuda::Result<()> {
    /// let context = CudaContext::host()?;
    /// let a = context.alloc_from(&[1.0f32, 2.0, 3.0, 4.0])?; // (2, 2)
    /// let mut c = context.alloc::<f32>(4)?;
    /// let args = [
    ///     GpuArg::from(&a),
    ///     (&a).into(),
    ///     (&mut c).into(),
    ///     2u32.into(),
    ///     2u32.into(),
    ///     2u32.into(),
    /// ];
    /// context.run_builtin("matrix_multiply", ElementType::F32, &args, None)?;
    /// assert_eq!(c.to_vec()?, [7.0, 10.0, 15.0, 22.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn run_builtin(
        &self,
        name: &str,
        elements: ElementType,
        args: &[GpuArg<'_>],
        stream: Option<&Stream>,
    ) -> Result<()> {
        let natives = natives(args)?;
        let _turns = take_turns(args)?;
        // SAFETY: the arguments point into `args`, which lives; the kernels keep to their signatures,
        // which are checked.
        call(|error| unsafe {
            ffi::wcuda_catalogue_run(
                self.handle(),
                as_native(name),
                elements.kind(),
                natives.as_ptr(),
                natives.len() as u64,
                native(stream),
                error,
            )
        })
    }
}

/// Tag in the ledger.
const TAG: &str = "neural_forward";

/// Number of elements of a matrix (batch, width).
fn value_count(batch: usize, width: usize) -> Result<usize> {
    batch.checked_mul(width).ok_or_else(|| {
        let message = format!("{batch} rows of {width} values overflow");
        Error::new(ErrorKind::InvalidArgument, message)
    })
}

/// One layer of [`CudaContext::neural_forward`]: `x · weights + bias`.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a> {
    /// Matrix (inputs, outputs), row-major.
    pub weights: &'a SafeCudaPtr<f32>,
    /// Vector (outputs).
    pub bias: &'a SafeCudaPtr<f32>,
    /// Number of inputs.
    pub inputs: usize,
    /// Number of outputs.
    pub outputs: usize,
}

impl CudaContext {
    /// Computes probabilities (batch, outputs of the last layer) from inputs (batch, inputs of the first layer): ReLU
    /// between the layers, softmax after the last. Any sizes are allowed. The result is queued on the context's own
    /// stream, which copies follow.
    ///
    /// ```
    /// use worker_cuda::{CudaContext, Layer};
    /// # fn main() -> worker_cuda::Result<()> {
    /// let context = CudaContext::host()?;
    /// let weights = context.alloc_from(&[1.0f32, 0.0, 0.0, 1.0])?;
    /// let bias = context.alloc::<f32>(2)?;
    /// let layer = Layer {
    ///     weights: &weights,
    ///     bias: &bias,
    ///     inputs: 2,
    ///     outputs: 2,
    /// };
    /// let x = context.alloc_from(&[3.0f32, 3.0])?;
    /// assert_eq!(context.neural_forward(&[layer], &x, 1)?.to_vec()?, [0.5, 0.5]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn neural_forward(
        &self,
        layers: &[Layer<'_>],
        x: &SafeCudaPtr<f32>,
        batch: usize,
    ) -> Result<SafeCudaPtr<f32>> {
        let mut inputs = match layers {
            [] => return Err(Error::new(ErrorKind::InvalidArgument, "layers: none")),
            [first, ..] => first.inputs,
        };
        if batch == 0 || x.len() != value_count(batch, inputs)? {
            let message = format!(
                "x has {} elements, {batch} rows of {inputs} are needed",
                x.len()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let mut values: Option<SafeCudaPtr<f32>> = None;
        for (index, layer) in layers.iter().enumerate() {
            if layer.inputs != inputs {
                let message = format!(
                    "layer {index} takes {} inputs, the one before gives {inputs}",
                    layer.inputs
                );
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
            let is_last = index + 1 == layers.len();
            let name = if is_last {
                "linear"
            } else {
                "fused_linear_relu"
            };
            let count = value_count(batch, layer.outputs)
                .map_err(|error| error.with_context(format!("layer {index}")))?;
            // SAFETY: the kernel writes all of it.
            let mut next = unsafe { self.alloc_uninit::<f32>(count, TAG) }?;
            let args = [
                GpuArg::from(values.as_ref().unwrap_or(x)),
                layer.weights.into(),
                layer.bias.into(),
                (&mut next).into(),
                (batch as u64).into(),
                (layer.inputs as u64).into(),
                (layer.outputs as u64).into(),
            ];
            self.run_builtin(name, ElementType::F32, &args, None)
                .map_err(|error| error.with_context(format!("layer {index}")))?;
            inputs = layer.outputs;
            values = Some(next);
        }
        let Some(logits) = values else {
            return Err(Error::new(ErrorKind::Internal, "no layer ran"));
        };
        // SAFETY: the kernel writes all of it.
        let mut result = unsafe { self.alloc_uninit::<f32>(logits.len(), TAG) }?;
        let args = [
            GpuArg::from(&logits),
            (&mut result).into(),
            (batch as u64).into(),
            (inputs as u64).into(),
        ];
        self.run_builtin("softmax", ElementType::F32, &args, None)?;
        Ok(result)
    }
}
