//! `compute run`: runs a kernel on arrays from files.

use std::path::PathBuf;

use serde_json::json;
use worker_cuda::{
    CudaContext, ElementType, ExecutionResult, GpuArg, GpuCompute, HostFunctions, Manifest,
    SafeCudaPtr, catalogue,
};

use super::call::{Param, Role, Sizes, of_builtin, of_manifest};
use crate::failure::{Failure, Outcome};
use crate::input::print_json;
use crate::load;
use crate::npy::{Array, element_bytes};
use crate::options::DeviceArgs;
use crate::size;

#[derive(clap::Args)]
pub struct Args {
    /// Name of the kernel
    #[arg(value_name = "NAME")]
    name: String,
    /// Input arrays, in the kernel's order
    #[arg(long = "in", value_name = "FILE")]
    inputs: Vec<PathBuf>,
    /// Files for the results, in the kernel's order
    #[arg(long = "out", value_name = "FILE")]
    outputs: Vec<PathBuf>,
    /// A scalar argument that does not follow from the shapes of the inputs: "eps=1e-5"
    #[arg(long = "arg", value_name = "NAME=NUMBER")]
    numbers: Vec<String>,
    /// The shape of a result, if it does not follow from known sizes: "y=3,4"
    #[arg(long = "shape", value_name = "NAME=SIZES")]
    shapes: Vec<String>,
    /// Element type for a kernel of the catalogue [default: the first input's]
    #[arg(long = "type", value_enum)]
    elements: Option<Elements>,
    /// Also use kernels of this manifest; runs the code it names
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// The folder of libnvrtc, if the loader does not find it
    #[arg(long, value_name = "DIR")]
    nvrtc: Option<PathBuf>,
    #[command(flatten)]
    device: DeviceArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Elements {
    F32,
    F16,
    /// Stored as u16 in files
    Bf16,
}

impl Elements {
    fn in_files(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "u16",
        }
    }

    fn of_call(self) -> ElementType {
        match self {
            Self::F32 => ElementType::F32,
            Self::F16 => ElementType::F16,
            Self::Bf16 => ElementType::Bf16,
        }
    }
}

/// Device memory, by element width.
enum Buffer {
    B1(SafeCudaPtr<u8>),
    B2(SafeCudaPtr<u16>),
    B4(SafeCudaPtr<u32>),
    B8(SafeCudaPtr<u64>),
}

macro_rules! each_width {
    ($buffer:expr, $memory:ident => $body:expr) => {
        match $buffer {
            Buffer::B1($memory) => $body,
            Buffer::B2($memory) => $body,
            Buffer::B4($memory) => $body,
            Buffer::B8($memory) => $body,
        }
    };
}

impl Buffer {
    /// Uploads an array's bytes; an empty array gets one unused element.
    fn upload(context: &CudaContext, dtype: &str, bytes: &[u8]) -> Outcome<Self> {
        let width = element_bytes(dtype).unwrap_or(1);
        let padded = match bytes {
            [] => vec![0; width],
            bytes => bytes.to_vec(),
        };
        macro_rules! values {
            ($number:ty) => {
                padded
                    .chunks_exact(width)
                    .filter_map(|chunk| Some(<$number>::from_le_bytes(chunk.try_into().ok()?)))
                    .collect::<Vec<$number>>()
            };
        }
        Ok(match width {
            1 => Self::B1(context.alloc_from(&padded)?),
            2 => Self::B2(context.alloc_from(&values!(u16))?),
            4 => Self::B4(context.alloc_from(&values!(u32))?),
            _ => Self::B8(context.alloc_from(&values!(u64))?),
        })
    }

    fn download(&self) -> Outcome<Vec<u8>> {
        Ok(each_width!(self, memory => {
            memory.to_vec()?.iter().flat_map(|value| value.to_le_bytes()).collect()
        }))
    }

    fn read_arg(&self) -> GpuArg<'_> {
        each_width!(self, memory => GpuArg::from(memory))
    }

    fn write_arg(&mut self) -> GpuArg<'_> {
        each_width!(self, memory => GpuArg::from(memory))
    }
}

/// One argument of the call.
enum Slot {
    Memory {
        buffer: Buffer,
        dtype: String,
        shape: Vec<u64>,
        is_written: bool,
    },
    Integer(String, i128),
    Number(String, f64),
    Bytes(Vec<u8>),
}

pub fn run(args: &Args, as_json: bool) -> Outcome {
    let context = load::context(&args.device)?;
    let mut compute = GpuCompute::with_context(&context)?;
    if let Some(folder) = &args.nvrtc {
        compute = compute.with_compiler_folder(folder);
    }
    let inputs = args
        .inputs
        .iter()
        .map(|path| Array::read(path))
        .collect::<Outcome<Vec<_>>>()?;
    let params = params(args, &compute, &inputs)?;
    let mut slots = slots(args, &context, &params, inputs)?;
    let result = {
        let natives = slots
            .iter_mut()
            .map(argument)
            .collect::<Outcome<Vec<_>>>()?;
        compute.run(&args.name, &natives)?
    };
    let mut outputs = args.outputs.iter();
    for slot in &slots {
        let Slot::Memory {
            buffer,
            dtype,
            shape,
            is_written: true,
        } = slot
        else {
            continue;
        };
        let dtype = known_type(dtype)?;
        let count: u64 = shape.iter().product();
        let width = element_bytes(dtype).unwrap_or(1) as u64;
        let mut bytes = buffer.download()?;
        bytes.truncate((count * width) as usize);
        let array = Array {
            dtype,
            shape: shape.clone(),
            bytes,
        };
        match outputs.next() {
            Some(path) => array.write(path)?,
            None => return Err(Failure::usage("there are more results than --out files")),
        }
    }
    report(&args.name, &result, as_json)
}

fn known_type(dtype: &str) -> Outcome<&'static str> {
    const NAMES: [&str; 11] = [
        "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "f32", "f64",
    ];
    let found = NAMES.iter().find(|name| **name == dtype);
    found.copied().ok_or_else(|| {
        Failure::new(format!(
            "elements of type '{dtype}' cannot be stored in a file"
        ))
    })
}

/// Registers the kernel and returns its parameters.
fn params(args: &Args, compute: &GpuCompute, inputs: &[Array]) -> Outcome<Vec<Param>> {
    if let Some(path) = &args.manifest {
        let manifest = Manifest::load(path)?;
        let kernel = manifest
            .kernels
            .iter()
            .find(|kernel| kernel.name == args.name);
        if let Some(kernel) = kernel.filter(|kernel| kernel.module.is_some()) {
            // SAFETY: the user who passes --manifest vouches for the code it names.
            unsafe { compute.register_manifest(&manifest, &HostFunctions::new()) }?;
            return Ok(of_manifest(kernel));
        }
    }
    let kernels = catalogue()?;
    let kernel = kernels
        .iter()
        .find(|kernel| kernel.name == args.name)
        .ok_or_else(|| {
            Failure::new(format!("no kernel '{}'", args.name))
                .hint("'worker-orcd kernels' lists kernels; kernels of a manifest need --manifest")
        })?;
    let elements = args.elements.unwrap_or_else(|| {
        let is_half = inputs.first().is_some_and(|array| array.dtype == "f16");
        if is_half {
            Elements::F16
        } else {
            Elements::F32
        }
    });
    compute.register_builtin(&args.name, elements.of_call(), 0)?;
    Ok(of_builtin(kernel, elements.in_files()))
}

/// The value of "name=value" among options.
fn given<'a>(list: &'a [String], name: &str) -> Option<&'a str> {
    list.iter().find_map(|text| {
        let (key, value) = text.split_once('=')?;
        (key == name).then_some(value)
    })
}

fn slots(
    args: &Args,
    context: &CudaContext,
    params: &[Param],
    inputs: Vec<Array>,
) -> Outcome<Vec<Slot>> {
    for text in args.numbers.iter().chain(&args.shapes) {
        let name = text.split('=').next().unwrap_or_default();
        if !text.contains('=') || !params.iter().any(|param| param.name == name) {
            let names: Vec<_> = params.iter().map(|param| param.name.as_str()).collect();
            let message = format!("'{text}': '{}' takes {}", args.name, names.join(", "));
            return Err(Failure::usage(message));
        }
    }
    let readers = params
        .iter()
        .filter(|param| matches!(param.role, Role::Read | Role::Update));
    let (needed, found) = (readers.clone().count(), inputs.len());
    if needed != found {
        let message = format!(
            "'{}' reads {needed} arrays, {found} given with --in",
            args.name
        );
        return Err(Failure::usage(message));
    }
    let mut sizes = Sizes::default();
    for param in params.iter().filter(|param| param.role == Role::Integer) {
        if let Some(number) = given(&args.numbers, &param.name).and_then(|text| text.parse().ok()) {
            sizes.set(&param.name, number);
        }
    }
    for (param, array) in readers.zip(&inputs) {
        sizes.learn(param, array);
        if array.dtype != param.dtype {
            let message = format!(
                "'{}' has type {}, the file has type {}",
                param.name, param.dtype, array.dtype
            );
            return Err(Failure::new(message).hint("--type sets the element type of the call"));
        }
    }
    sizes.add_output_size();
    let mut inputs = inputs.into_iter();
    params
        .iter()
        .map(|param| slot(args, context, param, &sizes, &mut inputs))
        .collect()
}

fn slot(
    args: &Args,
    context: &CudaContext,
    param: &Param,
    sizes: &Sizes,
    inputs: &mut impl Iterator<Item = Array>,
) -> Outcome<Slot> {
    let number = given(&args.numbers, &param.name);
    let missing = || {
        Failure::usage(format!(
            "'{}' is unknown; pass --arg {}=NUMBER",
            param.name, param.name
        ))
    };
    let wrong =
        |text: &str| Failure::usage(format!("--arg {}={text}: not a valid value", param.name));
    match param.role {
        Role::Read | Role::Update => {
            let array = inputs.next().ok_or_else(missing)?;
            Ok(Slot::Memory {
                buffer: Buffer::upload(context, array.dtype, &array.bytes)?,
                dtype: array.dtype.to_owned(),
                shape: array.shape,
                is_written: param.role == Role::Update,
            })
        }
        Role::Write => {
            let shape = match given(&args.shapes, &param.name) {
                Some(text) => text
                    .split(',')
                    .map(|size| size.trim().parse().map_err(|_| wrong(text)))
                    .collect::<Outcome<Vec<u64>>>()?,
                None => sizes.shape(param)?,
            };
            let width = element_bytes(&param.dtype).unwrap_or(1);
            let count = shape
                .iter()
                .try_fold(width as u64, |product, dim| product.checked_mul(*dim))
                .filter(|count| *count <= 1 << 40)
                .ok_or_else(|| Failure::usage(format!("'{}' is too large", param.name)))?;
            Ok(Slot::Memory {
                buffer: Buffer::upload(context, &param.dtype, &vec![0; count as usize])?,
                dtype: param.dtype.clone(),
                shape,
                is_written: true,
            })
        }
        Role::Integer => {
            let value = match number {
                Some(text) => text.parse().map_err(|_| wrong(text))?,
                None => sizes.get(&param.name).map(i128::from).ok_or_else(missing)?,
            };
            Ok(Slot::Integer(param.dtype.clone(), value))
        }
        Role::Number => {
            let text = number.ok_or_else(missing)?;
            Ok(Slot::Number(
                param.dtype.clone(),
                text.parse().map_err(|_| wrong(text))?,
            ))
        }
        Role::Bytes => {
            let text = number.ok_or_else(missing)?;
            let bytes: Option<Vec<u8>> = (0..text.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok())
                .collect();
            Ok(Slot::Bytes(bytes.ok_or_else(|| wrong(text))?))
        }
    }
}

fn argument(slot: &mut Slot) -> Outcome<GpuArg<'_>> {
    let past = |dtype: &str, value: &dyn std::fmt::Display| {
        Failure::usage(format!("{value} is not a valid {dtype}"))
    };
    macro_rules! integer {
        ($number:ty, $dtype:expr, $value:expr) => {
            <$number>::try_from(*$value)
                .map_err(|_| past($dtype, $value))?
                .into()
        };
    }
    Ok(match slot {
        Slot::Memory {
            buffer,
            is_written: true,
            ..
        } => buffer.write_arg(),
        Slot::Memory { buffer, .. } => buffer.read_arg(),
        Slot::Bytes(bytes) => GpuArg::bytes(bytes),
        Slot::Integer(dtype, value) => match dtype.as_str() {
            "i8" => integer!(i8, dtype, value),
            "u8" => integer!(u8, dtype, value),
            "i16" => integer!(i16, dtype, value),
            "u16" => integer!(u16, dtype, value),
            "i32" => integer!(i32, dtype, value),
            "u32" => integer!(u32, dtype, value),
            "u64" => integer!(u64, dtype, value),
            _ => integer!(i64, dtype, value),
        },
        Slot::Number(dtype, value) => match dtype.as_str() {
            "f32" => (*value as f32).into(),
            "f64" => (*value).into(),
            other => return Err(past(other, value)),
        },
    })
}

fn report(name: &str, result: &ExecutionResult, as_json: bool) -> Outcome {
    let nanoseconds = result.time.as_nanos();
    if as_json {
        return print_json(&json!({
            "kernel": name,
            "backend": result.backend.to_string(),
            "device_id": result.device_id,
            "gpu_executed": result.gpu_executed,
            "time_ns": nanoseconds as u64,
            "is_first_call": true, // one call: code and caches are cold
            "elements": result.elements,
            "bytes": result.bytes,
            "gigabytes_per_second": result.throughput_gbps(),
        }));
    }
    println!(
        "{name} on {}: {} elements, {}, {:.3} ms, {:.2} GB/s (first call, cold)",
        result.backend,
        size::count(result.elements),
        size::exact(result.bytes),
        nanoseconds as f64 / 1e6,
        result.throughput_gbps()
    );
    Ok(())
}
