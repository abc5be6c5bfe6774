//! Backends and failover through the safe interface, on the host.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use worker_cuda::backend::{self, BackendInstance, Fault, Features, Selection};
use worker_cuda::{
    Backend, Error, ErrorKind, Failover, FailoverEvent, FailoverMode, backends, device,
};

#[test]
fn list_has_each_backend_with_the_reason_it_lacks() {
    let all = backends().unwrap();
    let host = all.iter().find(|entry| entry.name == "host").unwrap();
    assert_eq!(host.devices, Ok(1));
    let vulkan = all.iter().find(|entry| entry.name == "vulkan").unwrap();
    assert!(!vulkan.is_available());
    let (kind, reason) = vulkan.devices.clone().unwrap_err();
    assert_eq!(kind, ErrorKind::NotAvailable);
    assert!(reason.contains("vulkan"), "{reason}");
    assert_eq!(vulkan.backend.to_string(), "vulkan");
    assert_eq!(backend::error_name(kind), "BackendNotAvailable");
    assert_eq!(backend::find("host").unwrap(), Backend::Host);
    assert!(backend::find("glide").is_err());
}

#[test]
fn selection_reports_what_it_passed_over() {
    let metal = backend::find("metal").unwrap();
    let chosen = Selection::builder().preferred(metal).choose().unwrap();
    assert_eq!(chosen.backend, Backend::Host);
    assert_eq!(chosen.skipped[0].0, metal);

    let error = Selection::builder()
        .preferred(Backend::Host)
        .fallbacks([])
        .features(Features::TENSOR_CORES)
        .choose()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAvailable);
    assert!(error.message().contains("tensor_cores"), "{error}");
    assert!(Features::of(Backend::Host, 0).unwrap().has(Features::FP64));
    assert!(device::device(Backend::Host, 0).unwrap().unified_memory);
}

#[test]
fn trace_sees_every_call_and_faults_are_values() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    let instance = BackendInstance::builder(Backend::Host)
        .trace(move |line| sink.lock().unwrap().push(line.to_owned()))
        .with_faults()
        .open()
        .unwrap();
    let context = instance.context().unwrap();

    let buffer = context.alloc_from(&[1u32, 2, 3]).unwrap();
    instance.fail(Fault::Copy, 1).unwrap();
    assert_eq!(buffer.to_vec().unwrap_err().kind(), ErrorKind::DeviceError);
    assert_eq!(buffer.to_vec().unwrap(), [1, 2, 3]);
    instance.fail(Fault::Allocate, 1).unwrap();
    assert_eq!(
        context.alloc::<u8>(16).unwrap_err().kind(),
        ErrorKind::OutOfMemory
    );
    instance.fail(Fault::Lost, 1).unwrap();
    assert_eq!(buffer.to_vec().unwrap_err().kind(), ErrorKind::DeviceLost);

    let lines = lines.lock().unwrap();
    assert!(
        lines[0].starts_with(r#"{"slot":"allocate","bytes":12,"#),
        "{}",
        lines[0]
    );
    assert!(lines.iter().any(|line| line.contains("WCUDA_DEVICE_LOST")));
}

#[test]
fn backends_that_are_not_here_are_errors() {
    let tpu = backend::find("tpu").unwrap();
    let error = BackendInstance::builder(tpu)
        .trace(|_| ())
        .open()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAvailable);
    let error = backend::unregister(Backend::Host).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

fn failover(mode: FailoverMode, events: &Arc<Mutex<Vec<FailoverEvent>>>) -> Failover {
    let sink = Arc::clone(events);
    let stdgpu = backend::find("stdgpu").unwrap();
    Failover::builder([(Backend::Host, 0), (stdgpu, 0)])
        .mode(mode)
        .cooldown(Duration::MAX)
        .on_event(move |event| sink.lock().unwrap().push(event.clone()))
        .build()
        .unwrap()
}

#[test]
fn whole_calls_move_when_a_device_is_lost() {
    let events = Arc::default();
    let failover = failover(FailoverMode::Automatic, &events);
    let mut runs = 0;
    let (values, _) = failover
        .run(|context| {
            runs += 1;
            let values = context.alloc_from(&[4u32, 5])?.to_vec()?;
            if runs == 1 {
                return Err(Error::new(ErrorKind::DeviceLost, "pretended"));
            }
            Ok(values)
        })
        .unwrap();
    assert_eq!((values, runs), (vec![4, 5], 2));
    let events = events.lock().unwrap();
    assert!(matches!(events[0], FailoverEvent::Started { .. }));
    assert!(matches!(events[1], FailoverEvent::Completed { .. }));
    let state = failover.state().unwrap();
    assert!(state.is_degraded);
    assert_eq!(state.move_count, 1);
    assert!(
        !failover
            .context()
            .unwrap()
            .info()
            .unwrap()
            .fallback_reason
            .is_empty()
    );
}

#[test]
fn mistakes_come_back_as_they_are() {
    let events = Arc::default();
    let failover = failover(FailoverMode::Automatic, &events);
    let error = failover
        .run(|_| -> worker_cuda::Result<()> {
            Err(Error::new(ErrorKind::CompileFailed, "line 3").with_context("my kernel"))
        })
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CompileFailed);
    assert_eq!(error.context(), Some("my kernel"));
    assert!(events.lock().unwrap().is_empty());
}

#[test]
fn a_panic_in_a_call_continues_after_it() {
    let events = Arc::default();
    let failover = failover(FailoverMode::Automatic, &events);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = failover.run(|_| -> worker_cuda::Result<()> { panic!("of the body") });
    }));
    assert!(caught.is_err());
    assert!(events.lock().unwrap().is_empty());
}

#[test]
fn off_by_default() {
    let failover = Failover::builder([(Backend::Host, 0)]).build().unwrap();
    assert_eq!(
        failover.trigger().unwrap_err().kind(),
        ErrorKind::InvalidState
    );
    assert!(Failover::builder([]).build().is_err());
}

#[test]
fn a_selection_without_the_host_may_find_nothing() {
    let vulkan = backend::find("vulkan").unwrap();
    let only = || Selection::builder().preferred(vulkan).fallbacks([]);
    let error = only().no_host().choose().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAvailable);
    let chosen = only().choose().unwrap();
    assert_eq!(chosen.backend, Backend::Host);
    assert_eq!(chosen.skipped[0].0, vulkan);
}

#[test]
fn full_memory_moves_only_when_asked_for() {
    for is_asked in [false, true] {
        let stdgpu = backend::find("stdgpu").unwrap();
        let mut builder = Failover::builder([(Backend::Host, 0), (stdgpu, 0)])
            .mode(FailoverMode::Automatic)
            .failure_threshold(3)
            .window(Duration::MAX)
            .cooldown(Duration::MAX)
            .recheck(Duration::MAX);
        if is_asked {
            builder = builder.on_out_of_memory();
        }
        let failover = builder.build().unwrap();
        let mut runs = 0;
        let result = failover.run(|_| {
            runs += 1;
            match runs {
                1 => Err(Error::new(ErrorKind::OutOfMemory, "pretended")),
                _ => Ok(()),
            }
        });
        assert_eq!((result.is_ok(), runs), (is_asked, 1 + i32::from(is_asked)));
        assert_eq!(failover.state().unwrap().is_degraded, is_asked);
    }
}
