//! The log sink, through the archive. One test: the sink belongs to the whole process.

use std::sync::{Arc, Mutex};

use worker_cuda::log::{Level, clear_sink, set_sink};
use worker_cuda::{CancelHandle, CudaContext, ErrorKind};

#[test]
fn sinks_get_records_replace_each_other_and_go() {
    let records = Arc::new(Mutex::new(Vec::new()));
    let kept = records.clone();
    set_sink(Level::Info, move |level, target, message| {
        let inside = CancelHandle::new().map(drop).unwrap_err().kind();
        let nested = clear_sink().unwrap_err().kind();
        kept.lock()
            .unwrap()
            .push((level, format!("{target}: {message}"), inside, nested));
    })
    .expect("a sink");
    CudaContext::host().expect("the host backend");
    let seen = records.lock().unwrap().clone();
    let (level, text, inside, nested) = seen.first().expect("opening a context is logged");
    assert_eq!(*level, Level::Info);
    assert!(text.contains("opened host 0"), "{text}");
    assert_eq!(*inside, ErrorKind::Reentrant, "a call from inside the sink");
    assert_eq!(
        *nested,
        ErrorKind::Reentrant,
        "a change of the sink from inside it"
    );

    set_sink(Level::Error, |_, _, _| panic!("only errors come here")).expect("another sink");
    assert_eq!(Arc::strong_count(&records), 1, "the first sink is gone");
    CudaContext::host().expect("the host backend");

    let count = seen.len();
    let kept = records.clone();
    set_sink(Level::Trace, move |_, _, _| {
        kept.lock().unwrap().clear();
        panic!("swallowed");
    })
    .expect("a sink that panics");
    CudaContext::host().expect("the host backend");
    assert_ne!(records.lock().unwrap().len(), count, "it ran");

    clear_sink().expect("no sink");
    clear_sink().expect("no sink twice");
    assert_eq!(Arc::strong_count(&records), 1, "the last sink is gone");
}
