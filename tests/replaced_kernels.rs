//! Kernels that are replaced while other threads run them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::{self, ThreadId};

use worker_cuda::backend::BackendInstance;
use worker_cuda::{Backend, CudaContext, GpuArg, GpuCompute, KernelSpec};

/// Says when a closure that owns it is dropped.
struct Alive(Arc<AtomicBool>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Stops a thread at its next call of the backend.
struct Gate {
    stops: Mutex<Option<ThreadId>>,
    reached: Barrier,
    released: Barrier,
}

impl Gate {
    fn pass(&self) {
        let mut stops = self.stops.lock().unwrap();
        if *stops == Some(thread::current().id()) {
            *stops = None;
            drop(stops);
            self.reached.wait();
            self.released.wait();
        }
    }
}

/// Where a kernel stops while it runs.
struct Midway {
    entered: Barrier,
    leave: Barrier,
    was_dropped: AtomicBool,
}

/// Kernel "k", which writes `version`, and the flag that is set when its closure has been dropped.
fn version(version: i32, midway: &Arc<Midway>) -> (KernelSpec, Arc<AtomicBool>) {
    let dropped = Arc::new(AtomicBool::new(false));
    let (alive, midway) = (Alive(dropped.clone()), midway.clone());
    let spec = KernelSpec::new("k")
        .write::<i32>("x", [1.into()])
        .host(move |call| {
            let (dropped, midway) = (alive.0.clone(), midway.clone());
            midway.entered.wait();
            midway.leave.wait();
            midway
                .was_dropped
                .fetch_or(dropped.load(Ordering::SeqCst), Ordering::SeqCst);
            call.slice_mut::<i32>(0)?[0] = version;
            Ok(())
        });
    (spec, dropped)
}

#[test]
fn a_run_keeps_the_kernel_that_it_looked_up() {
    let gate = Arc::new(Gate {
        stops: Mutex::new(None),
        reached: Barrier::new(2),
        released: Barrier::new(2),
    });
    let traced = gate.clone();
    let instance = BackendInstance::builder(Backend::Host)
        .trace(move |_| traced.pass())
        .open()
        .unwrap();
    let compute = GpuCompute::with_context(&instance.context().unwrap()).unwrap();
    let midway = Arc::new(Midway {
        entered: Barrier::new(2),
        leave: Barrier::new(2),
        was_dropped: AtomicBool::new(false),
    });
    let specs = [1, 2, 3].map(|number| version(number, &midway));
    let [
        (first, first_dropped),
        (second, second_dropped),
        (third, third_dropped),
    ] = specs;
    let dropped = |flag: &AtomicBool| flag.load(Ordering::SeqCst);

    compute.register(first).unwrap();
    let result = thread::scope(|scope| {
        let run = scope.spawn(|| {
            let mut x = compute.device().upload(&[0i32]).unwrap();
            *gate.stops.lock().unwrap() = Some(thread::current().id());
            compute.run("k", &[GpuArg::from(&mut x)]).unwrap();
            x.to_vec().unwrap()
        });
        gate.reached.wait(); // the name is looked up, and nothing has run
        compute.register(second).unwrap();
        gate.released.wait();
        midway.entered.wait(); // the closure is in the middle
        compute.register(third).unwrap();
        midway.leave.wait();
        run.join().unwrap()
    });

    assert!(!dropped(&midway.was_dropped), "dropped while it ran");
    assert_eq!(result, [1], "what was looked up is what runs");
    assert!(dropped(&first_dropped) && dropped(&second_dropped));
    assert!(!dropped(&third_dropped));
    drop(compute);
    assert!(dropped(&third_dropped));
}

#[test]
fn threads_replace_and_run_the_same_name() {
    let compute = GpuCompute::with_context(&CudaContext::host().unwrap()).unwrap();
    // Each closure owns what it writes: a freed one would write something else.
    let spec = |number: i64| {
        let values = vec![number; 16];
        KernelSpec::new("k")
            .write::<i64>("x", [16.into()])
            .host(move |call| {
                call.slice_mut::<i64>(0)?.copy_from_slice(&values);
                Ok(())
            })
    };
    compute.register(spec(0)).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut x = compute.device().upload(&[-1i64; 16]).unwrap();
                while !done.load(Ordering::Relaxed) {
                    compute.run("k", &[GpuArg::from(&mut x)]).unwrap();
                    let values = x.to_vec().unwrap();
                    assert!((0..400).contains(&values[0]), "{values:?}");
                    assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
                }
            });
        }
        for number in 0..400 {
            compute.register(spec(number)).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(compute.kernels(), ["k"]);
    assert_eq!(compute.registered().unwrap().len(), 1);
}

#[test]
fn a_closure_may_use_the_compute_when_it_is_replaced() {
    struct Lists(Arc<GpuCompute>);
    impl Drop for Lists {
        fn drop(&mut self) {
            assert_eq!(self.0.kernels(), ["k"]);
        }
    }
    let compute = Arc::new(GpuCompute::with_context(&CudaContext::host().unwrap()).unwrap());
    let owner = Lists(compute.clone());
    let first = KernelSpec::new("k").host(move |_| {
        let _ = &owner;
        Ok(())
    });
    compute.register(first).unwrap();
    compute
        .register(KernelSpec::new("k").host(|_| Ok(())))
        .unwrap();
    assert_eq!(Arc::strong_count(&compute), 1);
}
