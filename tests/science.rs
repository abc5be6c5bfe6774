//! The kernels of examples/kernels-science against vectors of numpy (tools/golden/science.py), as
//! functions of the host and, where there is a GPU and NVRTC, as device code.
#![cfg(feature = "manifest")]

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use worker_cuda::manifest::{ManifestParam, ParamKind};
use worker_cuda::{CudaContext, DeviceRepr, GpuArg, GpuCompute, GpuDevice, Manifest, SafeCudaPtr};

use gpu::gpu;

#[path = "support/gpu.rs"]
mod gpu;
#[path = "../examples/kernels-science/host.rs"]
mod host;

enum Buffer {
    F32(SafeCudaPtr<f32>),
    F64(SafeCudaPtr<f64>),
    I32(SafeCudaPtr<i32>),
    U8(SafeCudaPtr<u8>),
}

fn upload<T: DeviceRepr>(
    device: &GpuDevice,
    values: &[f64],
    to: impl Fn(f64) -> T,
) -> SafeCudaPtr<T> {
    let values: Vec<T> = values.iter().map(|value| to(*value)).collect();
    device.upload(&values).expect("memory")
}

impl Buffer {
    fn new(device: &GpuDevice, dtype: &str, values: &[f64]) -> Self {
        match dtype {
            "f32" => Self::F32(upload(device, values, |x| x as f32)),
            "f64" => Self::F64(upload(device, values, |x| x)),
            "i32" => Self::I32(upload(device, values, |x| x as i32)),
            "u8" => Self::U8(upload(device, values, |x| x as u8)),
            other => panic!("{other}"),
        }
    }

    fn values(&self) -> Vec<f64> {
        match self {
            Self::F32(memory) => memory
                .to_vec()
                .unwrap()
                .iter()
                .map(|x| (*x).into())
                .collect(),
            Self::F64(memory) => memory.to_vec().unwrap(),
            Self::I32(memory) => memory
                .to_vec()
                .unwrap()
                .iter()
                .map(|x| (*x).into())
                .collect(),
            Self::U8(memory) => memory
                .to_vec()
                .unwrap()
                .iter()
                .map(|x| (*x).into())
                .collect(),
        }
    }

    fn argument(&mut self, is_written: bool) -> GpuArg<'_> {
        match (self, is_written) {
            (Self::F32(memory), true) => memory.into(),
            (Self::F64(memory), true) => memory.into(),
            (Self::I32(memory), true) => memory.into(),
            (Self::U8(memory), true) => memory.into(),
            (Self::F32(memory), false) => GpuArg::from(&*memory),
            (Self::F64(memory), false) => GpuArg::from(&*memory),
            (Self::I32(memory), false) => GpuArg::from(&*memory),
            (Self::U8(memory), false) => GpuArg::from(&*memory),
        }
    }
}

fn numbers(value: &Value) -> Vec<f64> {
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(Value::as_f64).collect()
}

enum Argument {
    Memory(Buffer, bool, Vec<f64>),
    Number(&'static str, f64),
}

fn argument(device: &GpuDevice, param: &ManifestParam, value: &Value) -> Argument {
    if param.kind == ParamKind::Scalar {
        return Argument::Number(param.dtype, value["value"].as_f64().expect("a number"));
    }
    let expected = numbers(&value["out"]);
    let given = match (&value["in"], &value["both"]) {
        (Value::Null, Value::Null) => vec![77.0; expected.len()],
        (Value::Null, both) => numbers(both),
        (given, _) => numbers(given),
    };
    Argument::Memory(
        Buffer::new(device, param.dtype, &given),
        param.is_written,
        expected,
    )
}

fn check(compute: &GpuCompute, params: &[ManifestParam], case: &Value) {
    let name = case["kernel"].as_str().expect("a name");
    let values = case["arguments"].as_array().expect("arguments");
    assert_eq!(values.len(), params.len(), "{name}");
    let mut arguments: Vec<_> = params
        .iter()
        .zip(values)
        .map(|(param, value)| argument(compute.device(), param, value))
        .collect();
    let natives: Vec<GpuArg<'_>> = arguments
        .iter_mut()
        .map(|argument| match argument {
            Argument::Memory(buffer, is_written, _) => buffer.argument(*is_written),
            Argument::Number("f32", value) => (*value as f32).into(),
            Argument::Number("f64", value) => (*value).into(),
            Argument::Number(_, value) => (*value as i32).into(),
        })
        .collect();

    compute
        .run(name, &natives)
        .unwrap_or_else(|error| panic!("{name}: {error}"));

    drop_borrows(natives);
    let tolerance = case["tolerance"].as_f64().expect("a tolerance");
    for (argument, param) in arguments.iter().zip(params) {
        let Argument::Memory(buffer, true, expected) = argument else {
            continue;
        };
        let found = buffer.values();
        assert_eq!(found.len(), expected.len(), "{name}");
        let peak = expected.iter().fold(1.0f64, |peak, x| peak.max(x.abs()));
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert!(
                (found - expected).abs() <= tolerance * peak,
                "{name}: {}[{i}] is {found}, {expected} expected within {:e}",
                param.name,
                tolerance * peak
            );
        }
    }
}

/// Ends what the arguments borrow.
fn drop_borrows(arguments: Vec<GpuArg<'_>>) {
    assert!(!arguments.is_empty());
}

fn manifest() -> Manifest {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/kernels-science");
    Manifest::load(folder.join("kernels.json")).expect("the manifest")
}

fn every_case(context: &CudaContext) {
    let mut compute = GpuCompute::with_context(context).unwrap();
    if let Some(folder) = std::env::var_os("WCUDA_TEST_NVRTC") {
        compute = compute.with_compiler_folder(folder);
    }
    let manifest = manifest();
    // SAFETY: the manifest and its code are ours, and agree.
    unsafe { compute.register_manifest(&manifest, &host::functions()) }.unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/science.json");
    let text = std::fs::read_to_string(path).expect("the vectors");
    let vectors: Value = serde_json::from_str(&text).expect("JSON");
    let mut seen = BTreeSet::new();
    for case in vectors["cases"].as_array().expect("cases") {
        let kernel = manifest
            .kernels
            .iter()
            .find(|kernel| case["kernel"] == kernel.name);
        let kernel = kernel.expect("a kernel of the manifest");
        check(&compute, &kernel.params(), case);
        seen.insert(kernel.name.clone());
    }
    assert_eq!(
        seen.len(),
        manifest.kernels.len(),
        "each kernel has its cases"
    );
}

#[test]
fn host_functions_equal_numpy() {
    every_case(&CudaContext::host().unwrap());
}

#[test]
fn gpu_code_equals_numpy() {
    let Some(context) = gpu() else { return };
    every_case(&context);
}

/// The same formulas are not enough: the manifest's shapes and bounds refuse what would leave memory.
#[test]
fn what_does_not_fit_is_refused() {
    let compute = GpuCompute::with_context(&CudaContext::host().unwrap()).unwrap();
    // SAFETY: host functions only.
    unsafe { compute.register_manifest(&manifest(), &host::functions()) }.unwrap();
    let series = compute.device().upload(&[0.0f32; 10]).unwrap();
    let mut out = compute.device().upload(&[0.0f32; 10]).unwrap();
    let mut embed = |dim: i32, tau: i32| {
        let args = [
            (&series).into(),
            (&mut out).into(),
            10.into(),
            dim.into(),
            tau.into(),
        ];
        compute
            .run("time_delayed_embedding", &args)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        embed(3, 2),
        "argument 1 ('out') has 10 elements, the kernel needs 18"
    );
    assert_eq!(
        embed(3, 6),
        "argument 1 ('out') has an extent of -2, at least 0"
    );
    assert_eq!(embed(65, 1), "argument 3 ('dim') is 65, at most 64");
    assert_eq!(embed(2, 11), "argument 4 ('tau') is 11, at most 10");
}
