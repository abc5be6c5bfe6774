//! The values of `map`, `select` and similar filters: generators in Jinja, without a length and usable once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr};

/// Elements that are handed out once.
#[derive(Debug)]
pub(super) struct Generator {
    items: Vec<Value>,
    next: AtomicUsize,
}

impl Generator {
    pub(super) fn value(items: Vec<Value>) -> Value {
        let next = AtomicUsize::new(0);
        Value::from_object(Generator { items, next })
    }

    /// How many elements are left; None if `value` is no generator.
    pub(super) fn remaining(value: &Value) -> Option<usize> {
        let generator = value.downcast_object_ref::<Generator>()?;
        let done = generator.next.load(Ordering::Relaxed);
        Some(generator.items.len().saturating_sub(done))
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let this = Arc::clone(self);
        Enumerator::Iter(Box::new(std::iter::from_fn(move || {
            let index = this.next.fetch_add(1, Ordering::Relaxed);
            this.items.get(index).cloned()
        })))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}
