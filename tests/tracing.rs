//! Log records as events of the tracing crate.
#![cfg(feature = "tracing")]

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use worker_cuda::{CudaContext, log};

/// Keeps the events of one target.
#[derive(Clone, Default)]
struct Keeper(Arc<Mutex<Vec<(Level, String)>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!("{field}={value:?};");
    }
}

impl Subscriber for Keeper {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "worker_cuda"
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0
            .lock()
            .unwrap()
            .push((*event.metadata().level(), text.0));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn records_become_events_of_their_level() {
    let keeper = Keeper::default();
    tracing::subscriber::set_global_default(keeper.clone()).expect("the first subscriber");
    log::forward_to_tracing(log::Level::Info).expect("a sink");
    CudaContext::host().expect("the host backend");
    let events = keeper.0.lock().unwrap();
    let (level, text) = events.first().expect("opening a context is logged");
    assert_eq!(*level, Level::INFO);
    assert!(
        text.contains("part=\"context\"") && text.contains("opened host"),
        "{text}"
    );
}
