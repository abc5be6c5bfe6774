//! Sealed memory as its users see it, on the host backend.
#![cfg(feature = "seal")]

use std::collections::HashSet;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use worker_cuda::seal::*;
use worker_cuda::{
    CudaContext, Engine, EngineOptions, ErrorKind, Gguf, GpuCompute, KernelSpec, Model, Purpose,
    Row, Scrub, Step,
};

const TOKEN: [u8; 32] = [42; 32];

fn host() -> CudaContext {
    CudaContext::host().expect("the host backend is always there")
}

fn manager() -> VramManager {
    VramManager::with_context(host(), VramConfig::new(TOKEN)).expect("a manager")
}

fn pattern(size: usize) -> Vec<u8> {
    (0..size)
        .map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0])
        .collect()
}

/// Sizes around every border of blocks, chunks and pieces.
fn sizes() -> Vec<usize> {
    let mut sizes = vec![1, 63, 64, 65, 1023, 1024, 1025];
    sizes.extend((1..=22).flat_map(|k| [(1 << k) - 1, 1 << k, (1 << k) + 1]));
    sizes.push(5 * (1 << 20) + 12_345);
    sizes
}

#[test]
fn digests_are_those_of_the_blake3_crate_at_any_size_and_offset() {
    let bytes = pattern((6 << 20) + 16);
    let buffer = host().alloc_from(&bytes).unwrap();
    for size in std::iter::once(0).chain(sizes()) {
        for offset in [0, 1, 7] {
            let range = offset..offset + size;
            let expected = blake3::hash(&bytes[range.clone()]);
            let digest = buffer.digest(range.clone()).unwrap();
            assert_eq!(digest, *expected.as_bytes(), "{range:?}");
        }
    }
}

#[test]
fn shards_of_every_size_verify_and_report_what_they_are() {
    let mut manager = manager();
    for size in sizes() {
        let bytes = pattern(size);
        let shard = manager.seal_model(&bytes, 0).unwrap();
        assert_eq!(shard.digest, blake3::hash(&bytes).to_hex().as_str());
        assert_eq!((shard.vram_bytes, shard.gpu_device), (size as u64, 0));
        assert!(shard.is_sealed());
        manager.verify_sealed(&shard).unwrap();
        manager.verify_range(&shard, 0, size as u64).unwrap();
        manager.deallocate(&shard).unwrap();
    }
    assert_eq!(manager.used_vram(), 0);
    assert!(manager.context().ledger().unwrap().is_empty());
}

#[test]
fn a_reader_is_sealed_as_its_bytes_in_any_pieces() {
    struct Dribble<'a>(&'a [u8], usize);
    impl Read for Dribble<'_> {
        fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
            self.1 += 1;
            if self.1.is_multiple_of(3) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let count = target.len().min(self.0.len()).min(self.1 * 1009);
            target[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }
    let bytes = pattern(9_000_001); // more than twice the staging
    let mut manager = manager();
    let one = manager.seal_model(&bytes, 0).unwrap();
    let label = ShardLabel {
        model_ref: Some("model".into()),
        shard_index: Some(0),
        total_shards: Some(2),
    };
    let two = manager
        .seal_labelled(Dribble(&bytes, 0), bytes.len() as u64, 0, label)
        .unwrap();
    assert_eq!(one.digest, two.digest);
    assert_ne!(one.shard_id, two.shard_id);
    assert_eq!(two.model_ref.as_deref(), Some("model"));
    manager.verify_sealed(&two).unwrap();
    assert_eq!(
        manager
            .context()
            .memory(Purpose::Staging)
            .unwrap()
            .current_bytes,
        0
    );
}

#[test]
fn readers_that_fail_at_any_read_leave_nothing() {
    struct FailsAt(usize);
    impl Read for FailsAt {
        fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
            self.0 = (self.0.checked_sub(1)).ok_or_else(|| io::Error::other("broken"))?;
            let count = target.len().min(1000);
            target[..count].fill(1);
            Ok(count)
        }
    }
    let mut manager = manager();
    for k in 0..=5 {
        // Five reads of data and one that finds the end: a reader that continues is refused too.
        let error = manager.seal_reader(FailsAt(k), 5000, 0).unwrap_err();
        assert!(error.to_string().contains("broken"), "{error}");
        assert_eq!(manager.used_vram(), 0);
        assert!(manager.context().ledger().unwrap().is_empty());
    }
    let refused = |error: VramError| assert!(matches!(error, VramError::InvalidInput(_)));
    refused(manager.seal_reader(&[1u8; 9][..], 10, 0).unwrap_err());
    refused(manager.seal_reader(&[1u8; 11][..], 10, 0).unwrap_err());
    struct Miscounts;
    impl Read for Miscounts {
        fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
            Ok(target.len() + 1)
        }
    }
    let error = manager.seal_reader(Miscounts, 10, 0).unwrap_err();
    assert_eq!(error.to_string(), "invalid input: the reader miscounts");
    assert!(manager.context().ledger().unwrap().is_empty());
    manager.seal_reader(&[1u8; 10][..], 10, 0).unwrap();
}

#[test]
fn requests_past_the_limits_are_refused_with_the_numbers() {
    let context = CudaContext::builder()
        .backend(worker_cuda::Backend::Host)
        .memory_budget(1 << 20)
        .open()
        .unwrap();
    let config = VramConfig::new(TOKEN)
        .max_model_size(2 << 20)
        .total_vram(900_000);
    let mut manager = VramManager::with_context(context.clone(), config).unwrap();
    assert_eq!(manager.total_vram().unwrap(), 900_000);
    assert_eq!(manager.available_vram().unwrap(), 900_000);

    let input = |result: VramResult<SealedShard>| match result.unwrap_err() {
        VramError::InvalidInput(text) => text,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        input(manager.seal_model(b"abc", 1)),
        "gpu_device 1: this manager seals on 0"
    );
    assert_eq!(
        input(manager.seal_model(b"", 0)),
        "0 bytes cannot be sealed"
    );
    assert_eq!(
        input(manager.seal_reader(io::empty(), (2 << 20) + 1, 0)),
        "2097153 bytes are more than max_model_size, 2097152"
    );
    let label = ShardLabel {
        shard_index: Some(2),
        total_shards: Some(2),
        ..ShardLabel::default()
    };
    input(manager.seal_labelled(&b"abc"[..], 3, 0, label));

    // As many as max_model_size are no wrong argument.
    let error = manager.seal_reader(io::empty(), 2 << 20, 0).unwrap_err();
    assert!(
        matches!(error, VramError::InsufficientVram { .. }),
        "{error:?}"
    );

    let shard = manager.seal_model(&[0; 600_000], 0).unwrap();
    let error = manager.seal_model(&[0; 300_001], 0).unwrap_err();
    assert!(error.is_retriable());
    let VramError::InsufficientVram { needed, have } = error else {
        panic!("{error:?}")
    };
    assert_eq!((needed, have), (300_001, 300_000));
    let other = context.alloc::<u8>(300_000).unwrap(); // of somebody else
    assert_eq!(manager.available_vram().unwrap(), (1 << 20) - 900_000);
    drop(other);
    manager.deallocate(&shard).unwrap();
    manager.seal_model(&[0; 900_000], 0).unwrap();
}

#[test]
fn managers_are_refused_for_bad_configurations() {
    let config_error = |config: VramConfig| {
        let error = VramManager::with_context(host(), config).unwrap_err();
        assert!(matches!(error, VramError::ConfigError(_)), "{error:?}");
    };
    config_error(VramConfig::new([1; 31]));
    config_error(VramConfig::new(TOKEN).gpu_device(1));
    config_error(VramConfig::new(TOKEN).total_vram(0));
    if !worker_cuda::cuda_available() {
        let error = VramManager::new(VramConfig::new(TOKEN)).unwrap_err();
        assert!(matches!(error, VramError::PolicyViolation(_)), "{error:?}");
        assert!(VramManager::new_with_token(TOKEN, 0, None, "worker").is_err());
    }
    // Foreign memory on the device breaks the rule before anything is sealed.
    let context = host();
    let mut foreign = [0u8; 8];
    // SAFETY: `foreign` outlives the buffer, which is not used.
    let _borrowed = unsafe { context.borrow_memory(foreign.as_mut_ptr(), 8, "foreign") }.unwrap();
    let error = VramManager::with_context(context, VramConfig::new(TOKEN)).unwrap_err();
    assert!(matches!(error, VramError::PolicyViolation(_)), "{error:?}");
    assert_eq!(
        worker_cuda::Error::from(error).kind(),
        ErrorKind::NotResident
    );
}

#[test]
fn any_flipped_bit_of_the_bytes_is_found() {
    let mut manager = manager();
    let label = ShardLabel {
        model_ref: Some("m".into()),
        shard_index: Some(1),
        total_shards: Some(4),
    };
    let shard = manager.seal_labelled(&b"sealed"[..], 6, 0, label).unwrap();
    let bytes = shard.to_bytes().unwrap();
    let read_back = SealedShard::from_bytes(&bytes).unwrap();
    assert_eq!(read_back, shard);
    manager.verify_sealed(&read_back).unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        if let Ok(forged) = SealedShard::from_bytes(&flipped) {
            assert!(manager.verify_sealed(&forged).is_err(), "bit {bit}");
            assert!(manager.deallocate(&forged).is_err(), "bit {bit}");
        }
    }
    manager.verify_sealed(&shard).unwrap();
}

#[test]
fn checks_go_in_the_documented_order() {
    let mut one = manager();
    let two = manager(); // the same token
    let other = VramManager::with_context(host(), VramConfig::new([1; 32])).unwrap();
    let shard = one.seal_model(b"sealed", 0).unwrap();

    // Not sealed comes before a wrong signature, that before an allocation that is not there, and that
    // before a range past the end.
    let mut unsealed = shard.clone();
    unsealed.digest.clear();
    assert!(!unsealed.is_sealed());
    assert!(matches!(
        other.verify_sealed(&unsealed),
        Err(VramError::NotSealed)
    ));
    let forged = other.verify_sealed(&shard).unwrap_err();
    assert!(matches!(
        forged,
        VramError::SealVerificationFailed {
            first_bad_mib: None
        }
    ));
    assert!(forged.is_fatal());
    let dead = two.verify_range(&shard, 7, 1).unwrap_err();
    assert!(matches!(dead, VramError::IntegrityViolation) && dead.is_fatal());
    let past = one.verify_range(&shard, 6, 1).unwrap_err();
    assert!(matches!(past, VramError::InvalidInput(_)));
    assert!(one.verify_range(&shard, u64::MAX, u64::MAX).is_err());
    one.verify_range(&shard, 6, 0).unwrap();

    let mut odd = shard.clone();
    odd.shard_id = "../../etc".into(); // no encoding, so no signature
    assert!(matches!(
        one.verify_sealed(&odd),
        Err(VramError::SealVerificationFailed {
            first_bad_mib: None
        })
    ));
    for mut changed in [shard.clone(), shard.clone(), shard.clone()]
        .into_iter()
        .enumerate()
    {
        match changed.0 {
            0 => changed.1.vram_bytes = 5,
            1 => changed.1.model_ref = Some("other".into()),
            _ => changed.1.gpu_device = 1,
        }
        assert!(one.verify_sealed(&changed.1).is_err(), "{}", changed.0);
    }
}

#[test]
fn freed_shards_are_dead_and_names_can_be_cloned() {
    let mut manager = manager();
    let shard = manager.seal_model(b"sealed", 0).unwrap();
    let name = shard.clone();
    drop(shard); // the memory is the manager's
    manager.verify_sealed(&name).unwrap();
    manager.deallocate(&name).unwrap();
    let dead = |result: VramResult<()>| {
        assert!(matches!(result, Err(VramError::IntegrityViolation)));
    };
    dead(manager.verify_sealed(&name));
    dead(manager.deallocate(&name));
    let context = manager.context().clone();
    manager.seal_model(b"left", 0).unwrap();
    drop(manager);
    assert!(context.ledger().unwrap().is_empty());
}

#[test]
fn ids_are_unique_and_of_the_documented_form() {
    let mut manager = manager();
    let mut seen = HashSet::new();
    for _ in 0..500 {
        let id = manager.seal_model(b"x", 0).unwrap().shard_id;
        let hex = id.strip_prefix("shard-").unwrap();
        assert!(hex.len() == 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert!(seen.insert(id));
    }
}

/// Keeps records, or fails or panics, as the test asks.
#[derive(Clone, Default)]
struct Sink {
    kept: Arc<Mutex<Vec<AuditRecord>>>,
    flushes: Arc<Mutex<usize>>,
    mode: Arc<Mutex<&'static str>>,
}

impl AuditSink for Sink {
    fn emit(&mut self, record: &AuditRecord) -> Result<(), AuditError> {
        let mode = *self.mode.lock().unwrap();
        match mode {
            "fail" => Err(AuditError("full".into())),
            "panic" => std::panic::resume_unwind(Box::new("no message of the test's own")),
            _ => {
                self.kept.lock().unwrap().push(record.clone());
                Ok(())
            }
        }
    }
    fn flush(&mut self) -> Result<(), AuditError> {
        *self.flushes.lock().unwrap() += 1;
        Ok(())
    }
}

#[test]
fn events_report_what_happened_without_secrets() {
    let sink = Sink::default();
    let config = VramConfig::new("a secret token of thirty-two bytes")
        .worker_id("worker-7")
        .total_vram(1000);
    let mut manager = VramManager::with_context(host(), config)
        .unwrap()
        .audit_to(sink.clone());
    let shard = manager.seal_model(b"abc", 0).unwrap();
    manager.verify_sealed(&shard).unwrap();
    manager.seal_model(&[0; 998], 0).unwrap_err();
    let mut forged = shard.clone();
    forged.vram_bytes = 4;
    manager.verify_sealed(&forged).unwrap_err();
    manager.deallocate(&shard).unwrap();
    assert_eq!(*sink.flushes.lock().unwrap(), 1, "critical ones at once");
    drop(manager);
    assert_eq!(*sink.flushes.lock().unwrap(), 2);

    let records = sink.kept.lock().unwrap().clone();
    assert!(records.iter().all(|record| record.worker_id == "worker-7"));
    let text = format!("{records:?}");
    assert!(!text.contains("secret") && !text.contains("0x"), "{text}");
    let (shard_id, digest) = (shard.shard_id.clone(), shard.digest.clone());
    let events: Vec<_> = records.into_iter().map(|record| record.event).collect();
    assert!(matches!(
        events[0],
        AuditEvent::VramAllocated {
            requested: 3,
            allocated: 3,
            available: 1000 | 997,
            used: 3,
            gpu_device: 0
        }
    ));
    let expected = [
        AuditEvent::VramSealed {
            shard_id: shard_id.clone(),
            gpu_device: 0,
            vram_bytes: 3,
            digest: digest.clone(),
        },
        AuditEvent::SealVerified {
            shard_id: shard_id.clone(),
        },
        AuditEvent::VramAllocationFailed {
            requested: 998,
            available: 997,
            reason: "insufficient VRAM".into(),
            gpu_device: 0,
        },
        AuditEvent::SealVerificationFailed {
            shard_id: shard_id.clone(),
            reason: "seal verification failed: the signature is not valid".into(),
            expected_digest: digest,
            actual_digest: String::new(),
            severity: Severity::Critical,
        },
        AuditEvent::VramDeallocated {
            shard_id,
            freed_bytes: 3,
            remaining_used: 0,
            gpu_device: 0,
        },
    ];
    assert_eq!(events[1..], expected);
}

#[test]
fn a_sink_that_fails_or_panics_fails_nothing_and_is_counted() {
    for mode in ["fail", "panic"] {
        let sink = Sink::default();
        *sink.mode.lock().unwrap() = mode;
        let mut manager = manager().audit_to(sink);
        let shard = manager.seal_model(b"abc", 0).unwrap(); // two events
        manager.verify_sealed(&shard).unwrap();
        let counters = manager.audit_counters();
        assert_eq!(
            (counters.emit_failures, counters.critical_emit_failures),
            (3, 0)
        );
        let mut forged = shard.clone();
        forged.vram_bytes = 4;
        assert!(matches!(
            manager.verify_sealed(&forged),
            Err(VramError::SealVerificationFailed { .. })
        ));
        manager.deallocate(&shard).unwrap();
        let counters = manager.audit_counters();
        assert_eq!(
            (counters.emit_failures, counters.critical_emit_failures),
            (5, 1)
        );
    }
}

#[test]
fn secrets_show_nowhere() {
    let manager = VramManager::with_context(
        host(),
        VramConfig::new("a secret token of thirty-two bytes"),
    )
    .unwrap();
    let text = format!("{manager:?}");
    assert!(!text.contains("secret"), "{text}");
    assert!(text.contains("shards: 0, used_vram: 0"), "{text}");
    assert_eq!(AuditError("full".into()).to_string(), "full");
}

#[test]
fn eight_threads_verify_at_once() {
    let mut manager = manager();
    let shards: Vec<_> = (1..=4u8)
        .map(|i| {
            manager
                .seal_model(&vec![i; 100_000 * usize::from(i)], 0)
                .unwrap()
        })
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (manager, shards) = (&manager, &shards);
            scope.spawn(move || {
                for round in 0..30 {
                    manager
                        .verify_sealed(&shards[(thread + round) % 4])
                        .unwrap();
                }
            });
        }
    });
}

#[test]
fn a_scrubbed_context_seals_as_any_other() {
    let context = CudaContext::builder()
        .backend(worker_cuda::Backend::Host)
        .scrub(Scrub::OnFree)
        .open()
        .unwrap();
    let mut manager = VramManager::with_context(context, VramConfig::new(TOKEN)).unwrap();
    let shard = manager.seal_model(&pattern(70_000), 0).unwrap();
    manager.verify_sealed(&shard).unwrap();
    manager.deallocate(&shard).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_seal_and_verify(bytes in prop::collection::vec(any::<u8>(), 1..5000)) {
        let mut manager = manager();
        let shard = manager.seal_model(&bytes, 0).unwrap();
        prop_assert_eq!(&shard.digest, &blake3::hash(&bytes).to_hex().to_string());
        let read_back = SealedShard::from_bytes(&shard.to_bytes().unwrap()).unwrap();
        manager.verify_sealed(&read_back).unwrap();
    }
}

#[test]
fn sealed_bytes_are_read_back() {
    let mut manager = manager();
    let bytes = pattern((2 << 20) + 77);
    let shard = manager.seal_model(&bytes, 0).unwrap();
    let size = bytes.len() as u64;

    assert_eq!(manager.read(&shard, 0, size).unwrap(), bytes);
    for (offset, len) in [
        (0, 0),
        (5, 100),
        ((1 << 20) - 1, 2),
        (size - 1, 1),
        (size, 0),
    ] {
        let expected = &bytes[offset as usize..][..len as usize];
        assert_eq!(manager.read(&shard, offset, len).unwrap(), expected);
        let view = manager.view(&shard).unwrap().range(offset, len).unwrap();
        assert_eq!((view.len(), view.is_empty()), (len, len == 0));
        assert_eq!(view.read().unwrap(), expected);
    }
    let inner = manager.view(&shard).unwrap().range(100, 50).unwrap();
    assert_eq!(inner.range(10, 5).unwrap().read().unwrap(), bytes[110..115]);
    for (offset, len) in [(0, size + 1), (size, 1), (u64::MAX, 2), (1, u64::MAX)] {
        let error = manager.read(&shard, offset, len).unwrap_err();
        assert!(matches!(error, VramError::InvalidInput(_)), "{error:?}");
    }
    assert!(inner.range(40, 11).is_err());
    assert!(format!("{inner:?}").contains("range: 100..150"));
    let reader = manager.reader(&shard).unwrap();
    assert!(format!("{reader:?}").contains(&size.to_string()));
}

#[test]
fn sealed_bytes_are_an_argument_of_a_kernel() {
    let mut manager = manager();
    let values: Vec<u8> = (1..=6u32).flat_map(u32::to_le_bytes).collect();
    let shard = manager.seal_model(&values, 0).unwrap();
    let compute = GpuCompute::with_context(manager.context()).unwrap();
    let spec = |name: &str| {
        KernelSpec::new(name)
            .read::<u32>("x", ["n".into()])
            .write::<u32>("sum", [1.into()])
            .scalar::<u32>("n")
            .host(|call| {
                call.slice_mut::<u32>(1)?[0] = call.slice::<u32>(0)?.iter().sum();
                Ok(())
            })
    };
    compute.register(spec("sum")).unwrap();
    compute
        .register(
            KernelSpec::new("write")
                .write::<u32>("x", [6.into()])
                .host(|_| Ok(())),
        )
        .unwrap();
    let mut sum = compute.device().allocate::<u32>(1).unwrap();
    let view = manager.view(&shard).unwrap();

    let args = [view.arg::<u32>().unwrap(), (&mut sum).into(), 6u32.into()];
    compute.run("sum", &args).unwrap();
    assert_eq!(sum.to_vec().unwrap(), [21]);
    let part = view.range(8, 8).unwrap();
    let args = [part.arg::<u32>().unwrap(), (&mut sum).into(), 2u32.into()];
    compute.run("sum", &args).unwrap();
    assert_eq!(sum.to_vec().unwrap(), [7]);

    // What is sealed is read only, and of whole elements of the kernel's type.
    let error = compute.run("write", &[view.arg::<u32>().unwrap()]);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let args = [view.arg::<u8>().unwrap(), (&mut sum).into(), 6u32.into()];
    let error = compute.run("sum", &args).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(view.range(2, 8).unwrap().arg::<u32>().is_err());
    assert!(view.range(0, 7).unwrap().arg::<u32>().is_err());
    manager.verify_sealed(&shard).unwrap();
    let other = GpuCompute::with_context(&host()).unwrap();
    other.register(spec("sum")).unwrap();
    let mut sum = other.device().allocate::<u32>(1).unwrap();
    let view = manager.view(&shard).unwrap();
    let args = [view.arg::<u32>().unwrap(), (&mut sum).into(), 6u32.into()];
    let error = other.run("sum", &args).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "another context");
}

#[test]
fn a_sealed_model_is_loaded_and_computes_as_its_file() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/cuda/tests/data/models/llama.gguf"
    );
    let mut manager = manager();
    let shard = manager
        .seal_model(&std::fs::read(path).unwrap(), 0)
        .unwrap();
    let logits = |gguf: &Gguf, context: &CudaContext| {
        let model = Model::load(context, gguf).unwrap();
        let mut engine = Engine::new(&model, &EngineOptions::new()).unwrap();
        let sequence = engine.create_sequence().unwrap();
        let step = Step::new().row(Row::tokens(&sequence, &[1, 2, 3]).logits_last());
        let ticket = engine.submit(&step).unwrap();
        let output = engine.wait(ticket).unwrap();
        output.logits(&output.rows()[0]).to_vec()
    };

    let sealed = Gguf::from_reader(manager.reader(&shard).unwrap()).unwrap();
    let expected = logits(&Gguf::open(path).unwrap(), &host());
    assert_eq!(logits(&sealed, manager.context()), expected);

    manager.verify_sealed(&shard).unwrap();
    manager.deallocate(&shard).unwrap();
    let error = Model::load(manager.context(), &sealed).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert_eq!(manager.used_vram(), 0);
}

/// Flips a bit of every copy of `values` in this process's memory but `values` itself, copies in freed memory
/// included; their number.
fn flip_all(values: &[u8]) -> usize {
    let memory = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/proc/self/mem")
        .unwrap();
    let own = values.as_ptr() as u64;
    let mut count = 0;
    for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let mut parts = line.split_whitespace();
        let (start, end) = parts.next().unwrap().split_once('-').unwrap();
        if !parts.next().unwrap().starts_with("rw") {
            continue;
        }
        let at = u64::from_str_radix(start, 16).unwrap();
        let length = u64::from_str_radix(end, 16).unwrap() - at;
        // A sanitizer's shadow of the whole address space.
        if length > 1 << 40 {
            continue;
        }
        let mut bytes = vec![0; length as usize];
        // A mapping may have ended meanwhile.
        if memory.read_exact_at(&mut bytes, at).is_err() {
            continue;
        }
        for index in (0..bytes.len().saturating_sub(values.len())).step_by(16) {
            let found = at + index as u64;
            let in_copy = (bytes.as_ptr() as u64..).contains(&found)
                && found < bytes.as_ptr() as u64 + bytes.len() as u64;
            if bytes[index..].starts_with(values) && found != own && !in_copy {
                memory.write_all_at(&[values[0] ^ 1], found).unwrap();
                count += 1;
            }
        }
    }
    count
}

#[test]
fn a_loaded_models_weights_are_sealed_in_place() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/cuda/tests/data/models/llama.gguf"
    );
    // A norm of its own, to be found in memory.
    let gguf = Gguf::open(path).unwrap();
    let norm = gguf.tensor("output_norm.weight").unwrap().unwrap();
    let mut file = std::fs::read(path).unwrap();
    let norm = &mut file[norm.file_offset as usize..][..norm.bytes as usize];
    for (i, value) in norm.chunks_exact_mut(4).enumerate() {
        value.copy_from_slice(&(1.0 + i as f32 / 4096.0).to_le_bytes());
    }
    let norm = norm.to_vec();
    let own = std::env::temp_dir().join(format!("seal-{}.gguf", std::process::id()));
    std::fs::write(&own, file).unwrap();
    let mut manager = manager();
    let model = Model::load(manager.context(), &Gguf::open(&own).unwrap()).unwrap();
    std::fs::remove_file(&own).unwrap();
    let before = manager.context().memory(Purpose::Any).unwrap();

    let label = ShardLabel {
        model_ref: Some("llama".into()),
        ..ShardLabel::default()
    };
    let shard = manager.seal_weights(&model, label).unwrap();

    let after = manager.context().memory(Purpose::Any).unwrap();
    assert_eq!(
        after.current_bytes, before.current_bytes,
        "nothing is copied"
    );
    assert_eq!(shard.vram_bytes, model.info().weights_bytes);
    assert_eq!(manager.used_vram(), shard.vram_bytes);
    manager.check_sealed(&shard).unwrap();
    manager.verify_sealed(&shard).unwrap();
    let again = manager.seal_weights(&model, ShardLabel::default()).unwrap();
    assert_eq!(again.digest, shard.digest);
    manager.deallocate(&again).unwrap();

    let used = manager.model(&shard).unwrap();
    let mut engine = Engine::new(&used, &EngineOptions::new()).unwrap();
    let sequence = engine.create_sequence().unwrap();
    let step = Step::new().row(Row::tokens(&sequence, &[1, 2, 3]).logits_last());
    let ticket = engine.submit(&step).unwrap();
    engine.wait(ticket).unwrap();

    // Not bytes that a caller could address; and another context's model is none of this manager's.
    for error in [
        manager.view(&shard).unwrap_err(),
        manager.reader(&shard).unwrap_err(),
        manager.read(&shard, 0, 1).unwrap_err(),
        manager.verify_range(&shard, 0, 1).unwrap_err(),
        manager
            .seal_weights(&Model::load(&host(), &gguf).unwrap(), ShardLabel::default())
            .unwrap_err(),
    ] {
        assert!(matches!(error, VramError::InvalidInput(_)), "{error:?}");
    }
    let mut forged = shard.clone();
    forged.model_ref = None;
    assert!(matches!(
        manager.model(&forged),
        Err(VramError::SealVerificationFailed { .. })
    ));

    assert!(flip_all(&norm) > 0, "the model's among them");
    manager.check_sealed(&shard).unwrap();
    let error = manager.verify_sealed(&shard).unwrap_err();
    assert!(
        matches!(&error, VramError::WeightsChanged(text) if text.contains("output_norm.weight")),
        "{error:?}"
    );
    assert!(error.is_fatal());
    assert!(manager.seal_weights(&model, ShardLabel::default()).is_err());

    manager.deallocate(&shard).unwrap();
    assert!(matches!(
        manager.model(&shard),
        Err(VramError::IntegrityViolation)
    ));
    assert_eq!(manager.used_vram(), 0);
}

#[test]
fn weights_are_sealed_within_the_capacity_and_the_digest_is_theirs() {
    let context = host();
    let load = |name: &str| {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/cuda/tests/data/models/");
        let gguf = Gguf::open(format!("{folder}{name}.gguf")).unwrap();
        Model::load(&context, &gguf).unwrap()
    };
    let manager = |total| {
        let config = VramConfig::new(TOKEN).total_vram(total);
        VramManager::with_context(context.clone(), config).unwrap()
    };
    let seal = |mut manager: VramManager, model| manager.seal_weights(model, ShardLabel::default());
    let (model, other) = (load("llama"), load("llama-rope-llama3"));
    let bytes = model.info().weights_bytes;

    let error = seal(manager(bytes - 1), &model).unwrap_err();
    let VramError::InsufficientVram { needed, have } = error else {
        panic!("{error:?}")
    };
    assert_eq!((needed, have), (bytes, bytes - 1));
    let shard = seal(manager(bytes), &model).unwrap();
    let other = seal(manager(u64::MAX), &other).unwrap();
    assert_ne!(shard.digest, other.digest);
}

#[test]
fn a_forged_shard_writes_nothing_of_its_own_into_the_audit() {
    let sink = Sink::default();
    let mut manager = manager().audit_to(sink.clone());
    let shard = manager.seal_model(b"abc", 0).unwrap();
    let reported = |change: fn(&mut SealedShard)| {
        let mut forged = shard.clone();
        change(&mut forged);
        manager.verify_sealed(&forged).unwrap_err();
        match sink.kept.lock().unwrap().last().cloned().unwrap().event {
            AuditEvent::SealVerificationFailed {
                shard_id,
                expected_digest,
                ..
            } => (shard_id, expected_digest),
            other => panic!("{other:?}"),
        }
    };
    let (id, digest) = (shard.shard_id.clone(), shard.digest.clone());
    assert_eq!(
        reported(|shard| shard.vram_bytes = 4),
        (id.clone(), digest.clone())
    );
    let odd_id = reported(|shard| shard.shard_id = "a\nb".into());
    assert_eq!(odd_id, ("(malformed)".into(), digest));
    let nothing = (id, String::new());
    assert_eq!(reported(|shard| shard.digest = "abcd".into()), nothing);
    assert_eq!(reported(|shard| shard.digest = "\n".repeat(64)), nothing);
}

#[test]
fn the_fast_check_comes_before_each_use() {
    let mut manager = manager();
    let shard = manager.seal_model(b"weights", 0).unwrap();
    manager.check_sealed(&shard).unwrap();

    let mut forged = shard.clone();
    forged.vram_bytes = 6;
    for error in [
        manager.check_sealed(&forged).unwrap_err(),
        manager.read(&forged, 0, 1).unwrap_err(),
        manager.view(&forged).unwrap_err(),
        manager.reader(&forged).unwrap_err(),
    ] {
        assert!(
            matches!(error, VramError::SealVerificationFailed { .. }),
            "{error:?}"
        );
    }
    manager.deallocate(&shard).unwrap();
    for error in [
        manager.check_sealed(&shard).unwrap_err(),
        manager.read(&shard, 0, 1).unwrap_err(),
        manager.view(&shard).unwrap_err(),
        manager.reader(&shard).unwrap_err(),
    ] {
        assert!(matches!(error, VramError::IntegrityViolation), "{error:?}");
    }
}

#[test]
fn the_capacity_is_the_devices_unless_it_is_lowered() {
    const CAPACITY: u64 = 80 << 30; // more than 24 GiB, as a caller of this card has
    let context = CudaContext::builder()
        .backend(worker_cuda::Backend::Host)
        .memory_budget(CAPACITY)
        .open()
        .unwrap();
    let manager = VramManager::with_context(context, VramConfig::new(TOKEN)).unwrap();
    assert_eq!(manager.total_vram().unwrap(), CAPACITY);
    let manager = manager.with_total_vram(1000).unwrap();
    assert_eq!(manager.total_vram().unwrap(), 1000);
    let manager = manager.with_total_vram(u64::MAX).unwrap();
    assert_eq!(manager.total_vram().unwrap(), CAPACITY);
    assert!(manager.with_total_vram(0).is_err());
}
