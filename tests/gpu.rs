//! The safe handles on a GPU. Without one each test says why it does nothing; with
//! `WCUDA_REQUIRE_GPU=1` it fails instead.

use worker_cuda::*;

use gpu::gpu;
use models::tiny_path;

#[path = "support/gpu.rs"]
mod gpu;
#[path = "support/models.rs"]
mod models;

#[test]
fn gpu_context_and_caps_are_of_one_device() {
    let Some(context) = gpu() else { return };
    let info = context.info().unwrap();
    assert_eq!(
        (info.backend, info.ordinal, info.host_threads),
        (Backend::Cuda, 0, 0)
    );
    let caps = &devices(Backend::Cuda).unwrap()[0];
    assert!(caps.compute_capability >= (7, 5) && caps.multiprocessor_count > 0);
    let memory = context.memory(Purpose::Any).unwrap();
    assert!(memory.device_free_bytes <= memory.device_total_bytes);
    assert!(memory.device_total_bytes <= caps.total_memory);
    assert_eq!(
        CudaContext::auto().unwrap().info().unwrap().backend,
        Backend::Cuda
    );
    assert_eq!(
        CudaContext::new(4096).unwrap_err().kind(),
        ErrorKind::NoDevice
    );
}

#[test]
fn gpu_memory_fills_copies_and_keeps_its_bounds() {
    let Some(context) = gpu() else { return };
    let source: Vec<u16> = (0..100_003u32).map(|i| (i * 7) as u16).collect();
    let mut buffer = context.alloc_from(&source).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), source);
    buffer.fill_range(3..50_001, 0xabcd).unwrap();
    let mut part = [0; 5];
    buffer.read_into(49_998, &mut part).unwrap();
    assert_eq!(
        part,
        [0xabcd, 0xabcd, 0xabcd, source[50_001], source[50_002]]
    );
    let mut other = context.alloc::<u16>(10).unwrap();
    other.copy_from_device(2, &buffer, 50_001, 8).unwrap();
    assert_eq!(other.to_vec().unwrap()[2..], source[50_001..50_009]);
    assert_eq!(
        buffer.read_into(100_000, &mut part).unwrap_err().kind(),
        ErrorKind::OutOfRange
    );
    let foreign = CudaContext::host().unwrap().alloc::<u16>(4).unwrap();
    assert!(
        other.copy_from_device(0, &foreign, 0, 4).is_err(),
        "of another context"
    );
}

#[test]
fn gpu_digest_is_the_hosts() {
    let Some(context) = gpu() else { return };
    let bytes: Vec<u8> = (0..300_001u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let gpu = context.alloc_from(&bytes).unwrap();
    let host = CudaContext::host().unwrap().alloc_from(&bytes).unwrap();
    for range in [0..1, 0..1024, 5..1030, 0..65_536, 1..300_001] {
        let expected = host.digest(range.clone()).unwrap();
        assert_eq!(gpu.digest(range.clone()).unwrap(), expected, "{range:?}");
    }
}

#[test]
fn gpu_ledger_budget_and_pinned_memory_are_kept() {
    let Some(_) = gpu() else { return };
    let builder = CudaContext::builder()
        .backend(Backend::Cuda)
        .memory_budget(1 << 20);
    let context = builder.open().unwrap();
    let held = context.alloc_tagged::<u8>(1 << 20, "all").unwrap();
    assert_eq!(
        context.alloc::<u8>(1).unwrap_err().kind(),
        ErrorKind::OverBudget
    );
    let mut pinned = context.alloc_pinned::<f64>(1000).unwrap();
    assert_eq!(
        context.memory(Purpose::Staging).unwrap().allocation_count,
        1
    );
    drop(held);
    pinned[999] = 2.5;
    assert_eq!(
        context.alloc_from(&pinned).unwrap().to_vec().unwrap()[999],
        2.5
    );
    drop(pinned);
    assert!(context.ledger().unwrap().is_empty());
    let health = context.health().unwrap();
    assert_eq!(health.state, HealthState::Ok, "{}", health.message);
    assert_eq!((health.ledger_bytes, health.deferred_error_count), (0, 0));
}

#[test]
fn gpu_that_is_full_is_an_error_with_the_numbers() {
    let Some(context) = gpu() else { return };
    let total = context.memory(Purpose::Any).unwrap().device_total_bytes as usize;
    let error = context.alloc::<u8>(total + (1 << 30)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(
        error.message().contains(&(total + (1 << 30)).to_string()),
        "{error}"
    );
    context.alloc_from(&[1u8]).unwrap();
}

#[test]
fn gpu_loads_a_model_with_the_digests_of_its_file_and_verifies_it() {
    let Some(context) = gpu() else { return };
    let gguf = Gguf::open(tiny_path()).unwrap();
    let on_host = Model::load(&CudaContext::host().unwrap(), &gguf).unwrap();
    let plan = context.plan(&gguf, &EngineOptions::new()).unwrap();

    let model = Model::load(&context, &gguf).unwrap();

    let held = context.memory(Purpose::Any).unwrap();
    assert_eq!(held.current_bytes, plan.weights_bytes);
    assert_eq!(held.peak_bytes, plan.weights_bytes + plan.loading_bytes);
    for index in 0..gguf.tensors().len() as u64 {
        assert_eq!(
            model.tensor_digests(index).unwrap().file,
            on_host.tensor_digests(index).unwrap().file
        );
    }
    model.verify().unwrap();
    drop(model);
    assert!(context.ledger().unwrap().is_empty());
}

#[test]
fn gpu_compute_runs_what_it_compiles_and_what_it_loads() {
    let Some(context) = gpu() else { return };
    let mut compute = GpuCompute::with_context(&context).unwrap();
    if let Some(folder) = std::env::var_os("WCUDA_TEST_NVRTC") {
        compute = compute.with_compiler_folder(folder);
    }
    let n = || [Dim::from("n")];
    let spec = KernelSpec::new("vector_add")
        .read::<f32>("a", n())
        .read::<f32>("b", n())
        .write::<f32>("c", n())
        .scalar::<i32>("n")
        .threads(n());
    // SAFETY: it keeps to n elements, and writes only c.
    let spec = unsafe { spec.code(&include_bytes!("../cuda/tests/data/kernels/module.ptx")[..]) };
    compute.register(spec).unwrap();
    let device = compute.device();
    let a = device.upload(&[1.0f32; 1024]).unwrap();
    let b = device.upload(&[2.0f32; 1024]).unwrap();
    let mut c = device.allocate::<f32>(1024).unwrap();

    let result = compute
        .run(
            "vector_add",
            &[(&a).into(), (&b).into(), (&mut c).into(), 1024i32.into()],
        )
        .unwrap();

    assert!(result.gpu_executed && result.backend == Backend::Cuda);
    assert_eq!(c.to_vec().unwrap(), [3.0f32; 1024]);

    let source = "template <class T> __global__ void scale(T* x, T by, int n) {\n\
                  const int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= by; }";
    match compute.compile_kernel("scale<float>", source) {
        Err(error) if error.kind() == ErrorKind::NotAvailable => {
            println!("not compiled: {error}");
            return;
        }
        compiled => compiled.unwrap(),
    }
    let args = vec![(&mut c).into(), 0.5f32.into(), 1024i32.into()];
    // SAFETY: four blocks of 256 threads stay within 1024 elements.
    unsafe { compute.run_kernel("scale<float>", 4, 256, args) }.unwrap();
    assert_eq!(c.to_vec().unwrap(), [1.5f32; 1024]);
}

#[test]
fn gpu_launcher_loads_each_text_once() {
    let Some(context) = gpu() else { return };
    let ptx = include_str!("../cuda/tests/data/kernels/module.ptx");
    let device = GpuDevice::with_context(&context);
    let launcher = KernelLauncher::new(&context);
    let a = device.upload(&[1.0f32; 1024]).unwrap();
    let b = device.upload(&[2.0f32; 1024]).unwrap();
    let mut c = device.allocate::<f32>(1024).unwrap();
    for round in 0..3 {
        c.fill(0.0).unwrap();
        let args = [(&a).into(), (&b).into(), (&mut c).into(), 1024i32.into()];
        // SAFETY: four blocks of 256 threads keep to 1024 elements, and write only c.
        unsafe { launcher.load_and_launch_ptx(ptx, "vector_add", 4, 256, &args) }.unwrap();
        assert_eq!(device.download(&c).unwrap(), [3.0f32; 1024]);
        let modules = context.memory(Purpose::Module).unwrap();
        assert_eq!(modules.total_allocation_count, 1, "round {round}");
    }
    // SAFETY: it takes no arguments and does nothing.
    unsafe { launcher.load_and_launch_ptx(ptx, "noop", 1, 1, &[]) }.unwrap();
    // SAFETY: there is no such kernel.
    let missing = unsafe { launcher.load_and_launch_ptx(ptx, "dance", 1, 1, &[]) };
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    let modules = context.memory(Purpose::Module).unwrap();
    assert_eq!(
        (modules.allocation_count, modules.total_allocation_count),
        (1, 1)
    );
    drop(launcher);
    let modules = context.memory(Purpose::Module).unwrap();
    assert_eq!(modules.allocation_count, 0);
}

#[test]
fn gpu_arguments_of_every_kind_arrive_and_globals_are_memory() {
    let Some(context) = gpu() else { return };
    let code = include_bytes!("../cuda/tests/data/kernels/module.ptx");
    let module = CudaModule::load(&context, code).unwrap();
    let values = module.get_function("values").unwrap();
    assert_eq!(values.info().unwrap().parameter_count, 14);
    let mut out = context.alloc::<f64>(13).unwrap();
    let pair: Vec<u8> = [3i32.to_le_bytes(), 0.0f32.to_le_bytes()]
        .into_iter()
        .chain([0.0f32, 0.0, 0.0, 0.5].map(f32::to_le_bytes))
        .flatten()
        .collect();
    let args = [
        GpuArg::from(-1i8),
        2u8.into(),
        (-3i16).into(),
        4u16.into(),
        (-5i32).into(),
        6u32.into(),
        (-7i64).into(),
        8u64.into(),
        GpuArg::f16_bits(9),
        GpuArg::bf16_bits(10),
        11.5f32.into(),
        12.25f64.into(),
        GpuArg::bytes(&pair),
        (&mut out).into(),
    ];
    let config = LaunchConfig::for_elements(1);
    assert_eq!((config.grid, config.block), ((1, 1, 1), (256, 1, 1)));
    let stream = context.stream(Priority::High).unwrap();
    // SAFETY: every thread writes the same 13 numbers.
    unsafe { values.launch(&config.on(&stream), &args) }.unwrap();
    let done = stream.record().unwrap();
    let other = context.stream(Priority::Ordinary).unwrap();
    other.wait_for(&done).unwrap();
    other.synchronize().unwrap();
    let expected = [
        -1.0, 2.0, -3.0, 4.0, -5.0, 6.0, -7.0, 8.0, 9.0, 10.0, 11.5, 12.25, 3.5,
    ];
    assert_eq!(out.to_vec().unwrap(), expected);

    // SAFETY: the only view of it, and no kernel uses it.
    let counters = unsafe { module.global::<i32>("counters") }.unwrap();
    assert_eq!(counters.to_vec().unwrap(), [1, 2, 3, 4]);
    // SAFETY: there is none of this name.
    let missing = unsafe { module.global::<i32>("nobody") }.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    // SAFETY: its size is refused.
    let odd = unsafe { module.global::<u8>("counters") }.unwrap();
    assert_eq!(odd.len(), 16);
}

#[test]
fn gpu_streams_of_the_driver_are_given_and_borrowed() {
    let Some(context) = gpu() else { return };
    let stream = context.stream(Priority::Ordinary).unwrap();
    let native = context.native_stream(Some(&stream)).unwrap();
    assert_ne!(native, context.native_stream(None).unwrap());
    // SAFETY: `stream` lives on after the borrowed one.
    let borrowed = unsafe { context.borrow_stream(native) }.unwrap();
    assert_eq!(context.native_stream(Some(&borrowed)).unwrap(), native);
    borrowed.record().unwrap().wait().unwrap();
    drop(borrowed);
    stream.synchronize().unwrap();
}

#[test]
fn gpu_allocations_by_id_are_resident_and_stale_ids_are_refused() {
    let Some(context) = gpu() else { return };
    context.enforce_vram_only_policy().unwrap();
    context.validate_device_properties().unwrap();
    let allocator = CudaVramAllocator::with_context(context.clone());
    let ids: Vec<_> = (1..=1000)
        .map(|size| allocator.allocate(size * 100).unwrap())
        .collect();
    allocator.copy_to_vram(ids[999], 99_998, &[4, 5]).unwrap();
    assert_eq!(
        allocator.copy_from_vram(ids[999], 99_998, 2).unwrap(),
        [4, 5]
    );
    let residency = context.check_residency().unwrap();
    assert_eq!(residency.checked_count, 1000);
    allocator.deallocate(ids[0]).unwrap();
    assert_eq!(
        allocator.size_of(ids[0]).unwrap_err().kind(),
        ErrorKind::InvalidHandle
    );
    drop(allocator);
    assert!(context.ledger().unwrap().is_empty());
}

#[test]
fn gpu_borrowed_host_memory_is_named() {
    let Some(context) = gpu() else { return };
    let mut foreign = vec![7u32; 50];
    // SAFETY: `foreign` outlives the buffer, which is not read or written.
    let borrowed = unsafe { context.borrow_memory(foreign.as_mut_ptr(), 50, "foreign") }.unwrap();
    assert_eq!(borrowed.place().unwrap(), Place::Host);
    assert_eq!(
        context.check_residency().unwrap_err().kind(),
        ErrorKind::NotResident
    );
    assert!(!context.is_policy_enforced().unwrap());
    drop(borrowed);
    context.check_residency().unwrap();
}

#[cfg(feature = "seal")]
#[test]
fn gpu_seals_verifies_and_frees() {
    use worker_cuda::seal::{VramConfig, VramManager};
    let Some(context) = gpu() else { return };
    let config = VramConfig::new([7; 32]);
    let mut manager = VramManager::with_context(context.clone(), config).unwrap();
    let mut bytes: Vec<u8> = (0..20_000_001u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let shard = manager.seal_model(&bytes, 0).unwrap();
    assert_eq!(shard.digest, blake3::hash(&bytes).to_hex().as_str());
    manager.verify_sealed(&shard).unwrap();
    manager.verify_range(&shard, 19_999_999, 2).unwrap();
    bytes[5] ^= 1;
    let other = manager.seal_reader(&bytes[..], 20_000_001, 0).unwrap();
    assert_ne!(other.digest, shard.digest);
    manager.deallocate(&shard).unwrap();
    manager.verify_sealed(&shard).unwrap_err();
    drop(manager);
    assert!(context.ledger().unwrap().is_empty());
}

#[cfg(feature = "seal")]
#[test]
fn gpu_seals_a_models_weights_in_place() {
    use worker_cuda::seal::{ShardLabel, VramConfig, VramManager};
    let Some(context) = gpu() else { return };
    let config = VramConfig::new([7; 32]);
    let mut manager = VramManager::with_context(context.clone(), config).unwrap();
    let model = Model::load(&context, &Gguf::open(tiny_path()).unwrap()).unwrap();
    let held = context.memory(Purpose::Any).unwrap().current_bytes;
    let shard = manager.seal_weights(&model, ShardLabel::default()).unwrap();
    assert_eq!(context.memory(Purpose::Any).unwrap().current_bytes, held);
    manager.check_sealed(&shard).unwrap();
    manager.verify_sealed(&shard).unwrap();
    drop(model);
    let engine = Engine::new(&manager.model(&shard).unwrap(), &EngineOptions::new()).unwrap();
    manager.verify_sealed(&shard).unwrap();
    manager.deallocate(&shard).unwrap();
    drop(engine);
    drop(manager);
    assert!(context.ledger().unwrap().is_empty());
}

#[test]
fn gpu_pieces_are_the_hosts() {
    let Some(context) = gpu() else { return };
    let bytes: Vec<u8> = (0..5_000_001u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let gpu = context.alloc_from(&bytes).unwrap();
    let host = CudaContext::host().unwrap().alloc_from(&bytes).unwrap();
    for (range, first) in [(0..5_000_001, 0), (1..1_048_578, 7), (3..4, 1 << 40)] {
        let expected = host.digest_pieces(range.clone(), first).unwrap();
        assert_eq!(gpu.digest_pieces(range, first).unwrap(), expected);
    }
}

/// x[i] += 1 for i < n, a thread each.
const ADD_ONE: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry add_one(.param .u64 x, .param .u32 n)
{
  .reg .pred %p; .reg .b32 %r<5>; .reg .b64 %d<4>; .reg .f32 %f;
  ld.param.u64 %d0, [x];
  ld.param.u32 %r0, [n];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.s32 %r4, %r1, %r2, %r3;
  setp.ge.u32 %p, %r4, %r0;
  @%p bra done;
  cvta.to.global.u64 %d1, %d0;
  mul.wide.u32 %d2, %r4, 4;
  add.s64 %d3, %d1, %d2;
  ld.global.f32 %f, [%d3];
  add.f32 %f, %f, 0f3F800000;
  st.global.f32 [%d3], %f;
done:
  ret;
}
";

/// Adds 1, and `wrong` more to element 1000.
fn add_one(wrong: f32) -> KernelSpec {
    KernelSpec::new("add_one")
        .write::<f32>("x", ["n".into()])
        .scalar::<u32>("n")
        .threads(["n".into()])
        .host(move |call| {
            let x = call.slice_mut::<f32>(0)?;
            x.iter_mut().for_each(|x| *x += 1.0);
            x[1000] += wrong;
            Ok(())
        })
}

#[test]
fn gpu_parity_finds_the_element_that_differs() {
    let Some(context) = gpu() else { return };
    let compute = GpuCompute::with_context(&context).unwrap();
    for wrong in [0.0, 0.5] {
        // SAFETY: the code stays below n.
        let spec = unsafe { add_one(wrong).code(ADD_ONE) };
        compute.register(spec).unwrap();
        let mut x = context.alloc_from(&[2.0f32; 1001]).unwrap();
        let args = [GpuArg::from(&mut x), 1001u32.into()];
        let parity = compute.check_parity("add_one", &args, 1e-6).unwrap();
        let result = compute.run("add_one", &args).unwrap();
        assert!(result.gpu_executed && result.fallback_reason.is_empty());
        assert_eq!(
            x.to_vec().unwrap(),
            [3.0; 1001],
            "run once, not by the check"
        );
        assert_eq!((parity.compared, parity.within), (1001, wrong == 0.0));
        match parity.largest {
            None => assert_eq!(wrong, 0.0),
            Some(at) => assert_eq!((at.element, at.device, at.host), (1000, 3.0, 3.5)),
        }
    }
}

#[test]
fn gpu_fallback_is_opt_in_and_reported() {
    let Some(context) = gpu() else { return };
    let strict = GpuCompute::with_context(&context).unwrap();
    let error = strict.register(add_one(0.0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnsupportedKernel);

    let compute = GpuCompute::with_context(&context)
        .unwrap()
        .with_fallback(Fallback::IfUnsupported);
    compute.register(add_one(0.5)).unwrap();
    let mut x = context.alloc_from(&[2.0f32; 1001]).unwrap();
    let args = [GpuArg::from(&mut x), 1001u32.into()];
    let result = compute.run("add_one", &args).unwrap();
    assert!(!result.gpu_executed && result.backend == Backend::Host);
    assert_eq!(
        result.fallback_reason,
        "kernel 'add_one': has no device code"
    );
    assert_eq!(x.to_vec().unwrap()[999..], [3.0, 3.5]);

    // SAFETY: it does not load.
    let broken = unsafe { add_one(0.0).code(".version 7.0 .target sm_80 nonsense") };
    let error = compute.register(broken).unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::Malformed,
        "broken code is no reason"
    );
}
