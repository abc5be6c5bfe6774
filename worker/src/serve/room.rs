//! The memory that the bodies of all requests may take at once, shared between tenants.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;

use super::error::ApiError;

/// Bytes of each request that are not counted, so that short requests are accepted whatever others send.
pub const FREE_BYTES: usize = 64 << 10;

/// The memory of all bodies.
pub struct Bodies {
    limit: usize,
    /// Whether a tenant leaves as much free as it has taken itself.
    is_shared: bool,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    by_tenant: HashMap<u32, usize>,
}

/// What one request has taken. Dropping it gives that back.
pub struct Room {
    bodies: Arc<Bodies>,
    tenant: u32,
    bytes: AtomicUsize,
}

impl Bodies {
    pub fn new(limit: usize, is_shared: bool) -> Self {
        Self {
            limit,
            is_shared,
            taken: Mutex::default(),
        }
    }

    pub fn room(self: &Arc<Self>, tenant: u32) -> Room {
        Room {
            bodies: Arc::clone(self),
            tenant,
            bytes: AtomicUsize::new(0),
        }
    }
}

impl Room {
    /// From now on the request needs so much memory. An error leaves what it had.
    pub fn set(&self, bytes: usize) -> Result<(), ApiError> {
        let Bodies {
            limit, is_shared, ..
        } = *self.bodies;
        if bytes.saturating_sub(FREE_BYTES) > limit / 2 {
            let most = limit / 2 + FREE_BYTES;
            let message = format!("the request needs {bytes} bytes of memory, at most {most}");
            return Err(ApiError::too_large(message));
        }
        let bytes = bytes.saturating_sub(FREE_BYTES);
        let taken = self.bodies.taken.lock();
        let mut taken = taken.unwrap_or_else(PoisonError::into_inner);
        let had = self.bytes.load(Relaxed);
        let before = taken.by_tenant.get(&self.tenant).copied().unwrap_or(0);
        let own = before - had + bytes;
        let free = limit.saturating_sub(taken.all - before);
        let most = if is_shared { free / 2 } else { free };
        if bytes > had && own > most {
            let message = format!("requests need {limit} bytes of memory, which is the limit");
            let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "bodies_too_large", message);
            return Err(error.with_retry_after(Duration::from_secs(1)));
        }
        taken.all = taken.all - had + bytes;
        taken.by_tenant.insert(self.tenant, own);
        self.bytes.store(bytes, Relaxed);
        Ok(())
    }

    /// The request needs no more than this from now on.
    pub fn shrink(&self, bytes: usize) {
        if bytes.saturating_sub(FREE_BYTES) < self.bytes.load(Relaxed) {
            // Less is never refused.
            let _ = self.set(bytes);
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(result: Result<(), ApiError>) -> u16 {
        result.expect_err("is refused").status.as_u16()
    }

    #[test]
    fn a_tenant_leaves_as_much_as_it_takes() {
        let bodies = Arc::new(Bodies::new(1000, true));
        let (first, second, other) = (bodies.room(0), bodies.room(0), bodies.room(1));
        first.set(FREE_BYTES + 400).expect("there is room");

        assert_eq!(status(second.set(FREE_BYTES + 101)), 503);
        second.set(FREE_BYTES + 100).expect("half of all");
        other.set(FREE_BYTES + 250).expect("half of what is left");
        assert_eq!(status(other.set(FREE_BYTES + 251)), 503);
        second.set(FREE_BYTES).expect("is not counted");

        drop((first, second));
        other.set(FREE_BYTES + 500).expect("all others have left");
        drop(other);
        assert_eq!(bodies.taken.lock().expect("no panic").all, 0);
    }

    #[test]
    fn a_single_tenant_has_all_and_a_single_request_half() {
        let bodies = Arc::new(Bodies::new(1000, false));
        let rooms = [bodies.room(0), bodies.room(0), bodies.room(0)];

        assert_eq!(status(rooms[0].set(FREE_BYTES + 501)), 413);
        for room in &rooms[..2] {
            room.set(FREE_BYTES + 500).expect("there is room");
        }
        assert_eq!(status(rooms[2].set(FREE_BYTES + 1)), 503);
        rooms[0].shrink(FREE_BYTES);
        rooms[2].set(FREE_BYTES + 500).expect("it was given back");
    }
}
