//! `serve` on a device without memory: each allocation of a start fails once. Alone in its file, because it counts the
//! threads of the process.

use serde_json::{Value, json};
use worker_cuda::generate::Service;
use worker_cuda::generate::service::{ModelEngine, Options};
use worker_cuda::{
    Backend, BackendInstance, CudaContext, EngineOptions, ErrorKind, Fault, Gguf, Model, Purpose,
};
use worker_orcd::serve::ServedModel;

use http::{Reply, Running};

#[path = "support/http.rs"]
mod http;
#[path = "../../tests/support/models.rs"]
mod models;

fn bytes(context: &CudaContext) -> u64 {
    let memory = context.memory(Purpose::Any).expect("a ledger");
    memory.current_bytes
}

/// A server of a tiny model.
fn start(context: &CudaContext) -> worker_cuda::Result<Running> {
    let model = Model::load(context, &Gguf::open(models::tiny_path())?)?;
    let options = EngineOptions::new().max_sequences(4).max_batch_tokens(128);
    let engine = ModelEngine::new(&model, &options)?;
    let service = Service::start(engine, None, Options::default())?;
    Ok(Running::of(service, ServedModel::new("tiny")))
}

fn ask(served: &Running) -> Reply {
    let body = json!({
        "model": "tiny",
        "prompt": [1, 2, 3],
        "max_tokens": 12,
        "temperature": 0,
        "ignore_eos": true,
        "return_token_ids": true,
    });
    served.post("/v1/completions", &body)
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
fn a_start_that_fails_leaves_nothing_and_requests_allocate_nothing() {
    let threads = thread_count();
    let instance = BackendInstance::builder(Backend::Host).with_faults().open();
    let instance = instance.expect("the host is always there");
    let context = instance.context().expect("a context");
    let mut failed = 0;
    let served = loop {
        instance
            .fail(Fault::Allocate, failed + 1)
            .expect("has faults");
        match start(&context) {
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

    drop(served);
    assert_eq!(bytes(&context), 0);
    drop((instance, context));
    while thread_count() > threads {
        std::thread::yield_now();
    }
}
