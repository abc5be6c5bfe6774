//! Streams, events, copies that do not wait (section 17).

use super::*;

pub(super) fn push_layout(rows: &mut Vec<LayoutRow>) {
    wcuda_stream::push_layout(rows);
    wcuda_event::push_layout(rows);
}

// ---- 17. Streams, events, copies that do not wait ----

c_struct! {
    wcuda_stream {
        id: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_stream_create(
        context: wcuda_context,
        priority: i32,
        stream: *mut wcuda_stream,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_stream_destroy(stream: wcuda_stream);
    pub fn wcuda_stream_synchronize(stream: wcuda_stream, error: *mut wcuda_error) -> wcuda_status;
    pub fn wcuda_stream_native_get(
        context: wcuda_context,
        stream: wcuda_stream,
        native: *mut *mut c_void,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_stream_borrow(
        context: wcuda_context,
        native: *mut c_void,
        stream: *mut wcuda_stream,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

c_struct! {
    wcuda_event {
        id: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_event_create(
        context: wcuda_context,
        event: *mut wcuda_event,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_event_destroy(event: wcuda_event);
    pub fn wcuda_event_record(
        event: wcuda_event,
        stream: wcuda_stream,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_event_order(
        event: wcuda_event,
        stream: wcuda_stream,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_event_wait(
        event: wcuda_event,
        timeout_ms: i64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_event_done_get(
        event: wcuda_event,
        done: *mut i32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_event_elapsed_get(
        start: wcuda_event,
        end: wcuda_event,
        milliseconds: *mut f64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_buffer_write_async(
        buffer: wcuda_buffer,
        offset: u64,
        source: wcuda_pinned,
        source_offset: u64,
        bytes: u64,
        stream: wcuda_stream,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_buffer_read_async(
        buffer: wcuda_buffer,
        offset: u64,
        target: wcuda_pinned,
        target_offset: u64,
        bytes: u64,
        stream: wcuda_stream,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}
