//! Loading models on the host backend: progress, cancelling, failing, and the ledger afterwards.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use worker_cuda::gguf::ReadAt;
use worker_cuda::*;

use gguf_file::GgufFile;
use models::{host, tiny, tiny_models, tiny_path};

#[path = "support/forget.rs"]
mod forget;
#[path = "support/gguf_file.rs"]
mod gguf_file;
#[path = "support/models.rs"]
mod models;

fn assert_nothing_held(context: &CudaContext) {
    let entries = context.ledger().unwrap();
    assert!(entries.is_empty(), "still held: {entries:?}");
    assert_eq!(context.memory(Purpose::Staging).unwrap().current_bytes, 0);
}

#[test]
fn steps_are_planned_for_this_device_and_for_one_of_the_table() {
    let context = host();
    let gguf = Gguf::open(&tiny_models()[0]).unwrap();
    let options = EngineOptions::new();
    let shape = |rows, row_tokens, context_tokens| StepShape {
        rows,
        row_tokens,
        context_tokens,
    };
    let plan = |shape, device| context.plan_steps(&gguf, &options, &shape, device);

    let here = plan(shape(2, 1, 5), None).unwrap();
    let there = plan(shape(1, 1, 5), Some("h200")).unwrap();
    let prompt = plan(shape(1, 20, 0), Some("H200")).unwrap();

    assert!(!here.is_measured);
    assert!(here.nodes.iter().all(|node| node.kernel == "host"));
    assert!(there.is_measured);
    assert_eq!(there.bytes_per_second, 4_530_000_000_000);
    assert_eq!(there.nodes[0].operation, "start_step");
    assert_eq!(there.nodes[0].layer, None);
    let logits = there.nodes.last().unwrap();
    assert_eq!(logits.operation, "logits");
    assert!(logits.bytes > 0 && logits.flops > 0 && logits.limit_ns > 0.0);
    assert!(
        prompt
            .nodes
            .iter()
            .any(|node| node.kernel.starts_with("attention_prefill"))
    );
    let error = |result: Result<StepPlan>| result.unwrap_err().kind();
    assert_eq!(
        error(plan(shape(1, 1, 0), Some("H20"))),
        ErrorKind::NotFound
    );
    assert_eq!(error(plan(shape(17, 1, 0), None)), ErrorKind::OutOfRange);
    assert_eq!(error(plan(shape(1, 513, 0), None)), ErrorKind::OutOfRange);
}

#[test]
fn an_engine_is_planned_on_a_model_that_is_loaded() {
    let gguf = Gguf::open(tiny_path()).unwrap();
    let options = EngineOptions::new().max_sequences(2);
    let whole = host().plan(&gguf, &options).unwrap();
    let engine_bytes = whole.kv_bytes + whole.scratch_bytes;
    let context = CudaContext::builder()
        .backend(Backend::Host)
        .host_threads(2)
        .memory_budget(whole.weights_bytes + 2 * engine_bytes)
        .open()
        .unwrap();
    let model = Model::load(&context, &gguf).unwrap();
    let held = || context.memory(Purpose::Any).unwrap().current_bytes;

    let plan = model.plan_engine(&options).unwrap();
    assert!(plan.fits);
    assert_eq!((plan.weights_bytes, plan.total_bytes), (0, engine_bytes));
    let before = held();
    let first = Engine::new(&model, &options).unwrap();
    assert_eq!(held() - before, plan.total_bytes);
    assert!(model.plan_engine(&options).unwrap().fits);
    let second = Engine::new(&model, &options).unwrap();
    let plan = model.plan_engine(&options).unwrap();
    assert_eq!((plan.fits, plan.available_bytes), (false, 0));
    assert!(Engine::new(&model, &options).is_err());
    drop((first, second));
}

#[test]
fn plan_is_what_the_ledger_shows() {
    for path in tiny_models() {
        let (context, gguf) = (host(), Gguf::open(&path).unwrap());
        let options = EngineOptions::new().max_sequences(3).max_top_logprobs(5);
        let plan = context.plan(&gguf, &options).unwrap();
        assert!(plan.fits);
        let held = |purpose| context.memory(purpose).unwrap().current_bytes;

        let model = Model::load(&context, &gguf).unwrap();
        assert_eq!(
            held(Purpose::Weights),
            plan.weights_bytes,
            "{}",
            path.display()
        );
        assert_eq!(model.info().weights_bytes, plan.weights_bytes);
        assert_eq!(held(Purpose::Any), plan.weights_bytes);
        let engine = Engine::new(&model, &options).unwrap();
        assert_eq!(held(Purpose::Kv), plan.kv_bytes, "{}", path.display());
        assert_eq!(
            held(Purpose::Scratch),
            plan.scratch_bytes,
            "{}",
            path.display()
        );
        assert_eq!(held(Purpose::Any), plan.total_bytes);

        drop(engine);
        drop(model);
        assert_nothing_held(&context);
    }
}

#[test]
fn digests_distinguish_tensors_and_verify_finds_them_again() {
    let model = tiny();
    let count = model.gguf().tensors().len() as u64;
    let digests: Vec<_> = (0..count)
        .map(|index| model.tensor_digests(index).unwrap())
        .collect();
    for (index, tensor) in model.gguf().tensors().enumerate() {
        if tensor.unwrap().dimensions.len() > 1 {
            let same = |other: &&TensorDigests| other.file == digests[index].file;
            assert_eq!(digests.iter().filter(same).count(), 1);
        }
    }
    model.verify().unwrap();
    assert_eq!(digests[0], model.tensor_digests(0).unwrap());
    let absent = model.tensor_digests(count).unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::NotFound);
}

#[test]
fn info_is_what_the_file_says() {
    let model = tiny();
    let info = model.info();
    assert_eq!(info.architecture, "llama");
    assert_eq!(format!("{model:?}"), format!("Model({info:?})"));
    let builder = Model::builder(model.context(), model.gguf());
    assert!(format!("{builder:?}").starts_with("ModelBuilder { gguf: "));
    assert_eq!(
        (info.layer_count, info.vocabulary_size, info.context_length),
        (2, 64, 256)
    );
    assert_eq!((info.embedding_length, info.feed_forward_length), (32, 48));
    assert_eq!(
        (info.head_count, info.kv_head_count, info.head_length),
        (4, 2, 32)
    );
    let elements: u64 = model
        .gguf()
        .tensors()
        .map(|t| t.unwrap().element_count)
        .sum();
    assert_eq!(info.parameter_count, elements);
}

#[test]
fn progress_goes_through_the_phases_and_ends_once() {
    let mut seen = Vec::new();
    let gguf = Gguf::open(tiny_path()).unwrap();
    Model::builder(&host(), &gguf)
        .progress(|progress| {
            seen.push(progress);
            ControlFlow::Continue(())
        })
        .load()
        .unwrap();

    let phases = [
        LoadPhase::Plan,
        LoadPhase::Reserve,
        LoadPhase::Upload,
        LoadPhase::Seal,
    ];
    let place = |progress: &Progress| {
        phases
            .iter()
            .position(|&phase| phase == progress.phase)
            .unwrap_or(phases.len())
    };
    assert!(seen.iter().map(place).is_sorted(), "{seen:?}");
    assert_eq!(
        seen.iter()
            .filter(|progress| progress.phase == LoadPhase::Done)
            .count(),
        1
    );
    let last = seen.last().unwrap();
    assert_eq!(last.phase, LoadPhase::Done);
    assert_eq!(last.done_bytes, last.total_bytes);
    assert!(last.total_bytes > 0);
    assert!(
        seen.iter()
            .all(|progress| progress.done_bytes <= progress.total_bytes)
    );
}

#[test]
fn break_in_each_phase_cancels_and_leaves_nothing() {
    let (context, gguf) = (host(), Gguf::open(tiny_path()).unwrap());
    for phase in [
        LoadPhase::Plan,
        LoadPhase::Reserve,
        LoadPhase::Upload,
        LoadPhase::Seal,
    ] {
        let error = Model::builder(&context, &gguf)
            .progress(|progress| match progress.phase == phase {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            })
            .load()
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{phase:?}");
        assert_nothing_held(&context);
    }
    Model::load(&context, &gguf).unwrap();
}

#[test]
fn cancel_handle_works_from_before_inside_and_another_thread() {
    let (context, gguf) = (host(), Gguf::open(tiny_path()).unwrap());

    let before = CancelHandle::new().unwrap();
    before.trigger().unwrap();
    let error = Model::builder(&context, &gguf)
        .cancel(&before)
        .load()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);

    let inside = CancelHandle::new().unwrap();
    let error = Model::builder(&context, &gguf)
        .cancel(&inside)
        .progress(|_| {
            inside.trigger().expect("legal from inside");
            ControlFlow::Continue(())
        })
        .load()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);

    let other = CancelHandle::new().unwrap();
    let error = Model::builder(&context, &gguf)
        .cancel(&other)
        .progress(|_| {
            let other = other.clone();
            std::thread::spawn(move || other.trigger())
                .join()
                .unwrap()
                .unwrap();
            ControlFlow::Continue(())
        })
        .load()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert_nothing_held(&context);
}

#[test]
fn panic_in_progress_comes_out_of_load_and_leaves_nothing() {
    let (context, gguf) = (host(), Gguf::open(tiny_path()).unwrap());
    for phase in [LoadPhase::Plan, LoadPhase::Upload, LoadPhase::Done] {
        let caught = catch_unwind(AssertUnwindSafe(|| {
            Model::builder(&context, &gguf)
                .progress(|progress| {
                    assert_ne!(progress.phase, phase, "on purpose");
                    ControlFlow::Continue(())
                })
                .load()
        }));
        let payload = caught.expect_err("the panic continues");
        assert!(
            payload
                .downcast_ref::<String>()
                .unwrap()
                .contains("on purpose")
        );
        assert_nothing_held(&context);
    }
    Model::load(&context, &gguf).unwrap();
}

#[test]
fn calls_from_inside_progress_are_refused() {
    let (context, gguf) = (host(), Gguf::open(tiny_path()).unwrap());
    let mut kinds = Vec::new();
    Model::builder(&context, &gguf)
        .progress(|_| {
            kinds.push(context.synchronize().unwrap_err().kind());
            ControlFlow::Continue(())
        })
        .load()
        .unwrap();
    assert!(!kinds.is_empty());
    assert!(
        kinds.iter().all(|&kind| kind == ErrorKind::Reentrant),
        "{kinds:?}"
    );
}

/// Reads well for a number of bytes, then no more.
struct Limited {
    bytes: Vec<u8>,
    left: Arc<AtomicU64>,
    panic: bool,
}

impl ReadAt for Limited {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_exact_at(&self, target: &mut [u8], offset: u64) -> std::io::Result<()> {
        let want = target.len() as u64;
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(want)
            });
        if taken.is_err() {
            assert!(!self.panic, "the reader panics");
            return Err(std::io::Error::other("out of paper"));
        }
        self.bytes.read_exact_at(target, offset)
    }
}

#[test]
fn reader_that_fails_while_loading_leaves_nothing() {
    let context = host();
    for panic in [false, true] {
        let left = Arc::new(AtomicU64::new(u64::MAX / 2));
        let bytes = std::fs::read(tiny_path()).unwrap();
        let gguf = Gguf::from_reader(Limited {
            bytes,
            left: left.clone(),
            panic,
        })
        .unwrap();
        for limit in [0, 1000, 50_000] {
            left.store(limit, Ordering::Relaxed);
            let outcome = catch_unwind(AssertUnwindSafe(|| Model::load(&context, &gguf)));
            match outcome {
                Err(payload) => {
                    assert!(panic);
                    assert_eq!(
                        *payload.downcast_ref::<&str>().unwrap(),
                        "the reader panics"
                    );
                }
                Ok(loaded) => {
                    let error = loaded.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Io);
                    assert!(error.to_string().contains("out of paper"), "{error}");
                }
            }
            assert_nothing_held(&context);
        }
        left.store(u64::MAX / 2, Ordering::Relaxed);
        Model::load(&context, &gguf).unwrap();
    }
}

#[test]
fn model_that_does_not_fit_is_refused_with_the_numbers() {
    let gguf = Gguf::open(tiny_path()).unwrap();
    let builder = CudaContext::builder()
        .backend(Backend::Host)
        .memory_budget(10_000);
    let context = builder.open().unwrap();
    let plan = context.plan(&gguf, &EngineOptions::new()).unwrap();
    assert!(!plan.fits);
    assert_eq!(plan.available_bytes, 10_000);
    let error = Model::load(&context, &gguf).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    assert!(error.message().contains("10000"), "{error}");
    assert_nothing_held(&context);
}

#[test]
fn file_without_a_model_is_refused_with_a_reason() {
    let context = host();
    let empty = Gguf::from_bytes(GgufFile::new().bytes()).unwrap();
    for error in [
        Model::load(&context, &empty).unwrap_err(),
        context.plan(&empty, &EngineOptions::new()).unwrap_err(),
    ] {
        assert!(!error.message().is_empty());
        assert_ne!(error.kind(), ErrorKind::Internal, "{error}");
    }
    let unknown = GgufFile::new().bytes();
    let place = unknown
        .windows(5)
        .position(|window| window == b"llama")
        .unwrap();
    let mut unknown = unknown;
    unknown[place..place + 5].copy_from_slice(b"lemur");
    let unknown = Gguf::from_bytes(unknown).unwrap();
    let error = Model::load(&context, &unknown).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("lemur"), "{error}");
    assert_nothing_held(&context);
}

#[test]
fn model_outlives_what_it_was_made_from_and_may_be_forgotten() {
    let model = {
        let gguf = Gguf::from_bytes(std::fs::read(tiny_path()).unwrap()).unwrap();
        Model::load(&host(), &gguf).unwrap()
    };
    assert_eq!(
        model.gguf().str("general.architecture").unwrap(),
        Some("llama")
    );
    let mut engine = Engine::new(&model, &EngineOptions::new()).unwrap();
    let context = model.context().clone();
    drop(model);
    engine.create_sequence().unwrap();
    forget::forget(engine);
    assert!(!context.ledger().unwrap().is_empty());
}
