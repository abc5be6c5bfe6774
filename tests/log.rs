//! The log sink, through the archive.

use worker_cuda::log::{Level, clear_sink, set_sink};

#[test]
fn sinks_replace_each_other_and_are_dropped_when_removed() {
    let held = std::sync::Arc::new(());
    let (first, second) = (held.clone(), held.clone());

    set_sink(Level::Trace, move |_, _, _| drop(first.clone())).expect("first sink");
    set_sink(Level::Info, move |_, _, _| drop(second.clone())).expect("second sink");
    assert_eq!(
        std::sync::Arc::strong_count(&held),
        2,
        "the first sink is gone"
    );
    clear_sink().expect("no sink");
    clear_sink().expect("no sink twice");

    assert_eq!(
        std::sync::Arc::strong_count(&held),
        1,
        "the second sink is gone"
    );
}
