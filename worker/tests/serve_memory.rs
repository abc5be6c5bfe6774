//! `serve` on a device that fails: each allocation of a start, a step, and then everything. Alone in its file, because it
//! counts the threads of the process.

use serde_json::{Value, json};
use worker_cuda::generate::Service;
use worker_cuda::generate::service::{ModelEngine, Options};
use worker_cuda::{
    Backend, BackendInstance, CudaContext, EngineOptions, ErrorKind, Fault, Gguf, Model, Purpose,
};
use worker_orcd::serve::{Ended, ServedModel};

use faulty::Faulty;
use http::{Reply, Running};

#[path = "../../tests/support/faulty.rs"]
mod faulty;
#[path = "support/http.rs"]
mod http;
#[path = "../../tests/support/models.rs"]
mod models;

fn bytes(context: &CudaContext) -> u64 {
    let memory = context.memory(Purpose::Any).expect("a ledger");
    memory.current_bytes
}

/// A server of a tiny model, whose steps fail after so many, the last first.
fn start(context: &CudaContext, faults: &[(u32, ErrorKind)]) -> worker_cuda::Result<Running> {
    let model = Model::load(context, &Gguf::open(models::tiny_path())?)?;
    let options = EngineOptions::new().max_sequences(4).max_batch_tokens(128);
    let engine = Faulty {
        engine: ModelEngine::new(&model, &options)?,
        faults: faults.to_vec(),
    };
    let service = Service::start(engine, None, Options::default())?;
    Ok(Running::of(service, ServedModel::new("tiny")))
}

fn request() -> Value {
    json!({
        "model": "tiny",
        "prompt": [1, 2, 3],
        "max_tokens": 12,
        "temperature": 0,
        "ignore_eos": true,
        "return_token_ids": true,
    })
}

fn ask(served: &Running) -> Reply {
    served.post("/v1/completions", &request())
}

fn tokens(reply: &Reply) -> Value {
    let tokens = reply.ok()["choices"][0]["token_ids"].take();
    assert_eq!(tokens.as_array().map(Vec::len), Some(12), "{tokens}");
    tokens
}

fn thread_count() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task");
    tasks.expect("the threads of this process").count()
}

#[test]
fn failed_starts_and_requests_faults_and_a_lost_device_leave_nothing() {
    let threads = thread_count();
    let instance = BackendInstance::builder(Backend::Host).with_faults().open();
    let instance = instance.expect("the host is always there");
    let context = instance.context().expect("a context");
    let mut failed = 0;
    let served = loop {
        instance
            .fail(Fault::Allocate, failed + 1)
            .expect("has faults");
        match start(&context, &[]) {
            Ok(served) => break served,
            Err(error) => assert_eq!(error.kind(), ErrorKind::OutOfMemory),
        }
        assert_eq!(bytes(&context), 0, "after allocation {failed}");
        failed += 1;
    };
    assert!(failed > 2, "{failed} allocations");
    instance.fail(Fault::Allocate, 0).expect("has faults");

    let alone = tokens(&ask(&served));
    instance.fail(Fault::Allocate, 1).expect("has faults");
    for _ in 0..3 {
        assert_eq!(tokens(&ask(&served)), alone);
        assert_eq!(served.service.stats().held_pages, 0);
    }
    let error = context.alloc::<u8>(16).expect_err("the next allocation");
    assert_eq!(
        error.kind(),
        ErrorKind::OutOfMemory,
        "no request has allocated"
    );
    assert_eq!(tokens(&ask(&served)), alone);

    let mut endless = request();
    endless["max_tokens"] = 200.into();
    endless["stream"] = true.into();
    let left = served.begin("/v1/completions", &endless);
    served.wait_for_running(1);
    drop(left);
    served.wait_for_running(0);
    assert_eq!(tokens(&ask(&served)), alone);

    drop(served);
    assert_eq!(bytes(&context), 0);

    // The device cannot be opened again, because it is an instance's.
    let faults = [(60, ErrorKind::DeviceLost), (5, ErrorKind::DeviceError)];
    let served = start(&context, &faults).expect("there is memory");
    let lost = loop {
        let reply = ask(&served);
        if reply.status != 200 {
            break reply;
        }
        assert_eq!(tokens(&reply), alone);
        assert_eq!(served.service.stats().engine_faults, 1);
    };
    lost.assert_error(503, "device_lost", None);
    assert_eq!(served.ended(), Ended::Lost);
    assert_eq!(bytes(&context), 0);
    drop((instance, context));
    while thread_count() > threads {
        std::thread::yield_now();
    }
}
