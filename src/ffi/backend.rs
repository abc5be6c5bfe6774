//! Sections 21 and 21b: `worker_cuda/backend.h`.

use super::*;

pub(super) fn push_layout(rows: &mut Vec<LayoutRow>) {
    wcuda_backend_entry::push_layout(rows);
    wcuda_selection_options::push_layout(rows);
    wcuda_skipped_backend::push_layout(rows);
    wcuda_selection::push_layout(rows);
    wcuda_backend::push_layout(rows);
    wcuda_backend_options::push_layout(rows);
    wcuda_backend_info::push_layout(rows);
    wcuda_device_memory::push_layout(rows);
    wcuda_backend_kernel::push_layout(rows);
    wcuda_backend_vtable::push_layout(rows);
    wcuda_backend_registration::push_layout(rows);
    wcuda_failover_event::push_layout(rows);
    wcuda_failover_target::push_layout(rows);
    wcuda_failover_options::push_layout(rows);
    wcuda_failover::push_layout(rows);
    wcuda_failover_state::push_layout(rows);
}

// ---- 21. Backends: one table of functions for every kind of device ----

pub const WCUDA_BACKEND_VULKAN: i32 = 3;
pub const WCUDA_BACKEND_METAL: i32 = 4;
pub const WCUDA_BACKEND_WEBGPU: i32 = 5;
pub const WCUDA_BACKEND_OPENGL: i32 = 6;
pub const WCUDA_BACKEND_OPENGLES: i32 = 7;
pub const WCUDA_BACKEND_WEBGL2: i32 = 8;
pub const WCUDA_BACKEND_STDGPU: i32 = 9;
pub const WCUDA_BACKEND_SIMULATED: i32 = 10;
pub const WCUDA_BACKEND_FPGA: i32 = 11;
pub const WCUDA_BACKEND_DIRECTML: i32 = 12;
pub const WCUDA_BACKEND_TPU: i32 = 13;
pub const WCUDA_BACKEND_REGISTERED: i32 = 256;
c_struct! {
    sized wcuda_backend_entry {
        struct_size: u32,
        r#type: i32,
        priority: i32,
        is_available: i32,
        device_count: i32,
        status: wcuda_status,
        name: [c_char; 32],
        reason: [c_char; 200],
    }
}

unsafe extern "C" {
    pub fn wcuda_backend_list(
        first: u64,
        entries: *mut wcuda_backend_entry,
        capacity: u64,
        count: *mut u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_backend_find(
        name: wcuda_string,
        r#type: *mut i32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

pub const WCUDA_FEATURE_FP16: u32 = 1 << 0;
pub const WCUDA_FEATURE_FP64: u32 = 1 << 1;
pub const WCUDA_FEATURE_ATOMICS: u32 = 1 << 2;
pub const WCUDA_FEATURE_SHARED_MEMORY: u32 = 1 << 3;
pub const WCUDA_FEATURE_SUBGROUPS: u32 = 1 << 4;
pub const WCUDA_FEATURE_COOPERATIVE_GROUPS: u32 = 1 << 5;
pub const WCUDA_FEATURE_TENSOR_CORES: u32 = 1 << 6;
pub const WCUDA_FEATURE_DYNAMIC_PARALLELISM: u32 = 1 << 7;
unsafe extern "C" {
    pub fn wcuda_device_features_get(
        caps: *const wcuda_device_caps,
        features: *mut u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

pub const WCUDA_SELECT_NO_HOST: u32 = 1 << 0;
c_struct! {
    sized wcuda_selection_options {
        struct_size: u32,
        flags: u32,
        preferred: i32,
        fallback_count: u32,
        fallbacks: *const i32,
        required_features: u64,
    }
}

c_struct! {
    sized wcuda_skipped_backend {
        struct_size: u32,
        r#type: i32,
        status: wcuda_status,
        reason: [c_char; 244],
    }
}

c_struct! {
    sized wcuda_selection {
        struct_size: u32,
        r#type: i32,
        ordinal: i32,
        reserved: u32,
        skipped: *mut wcuda_skipped_backend,
        skipped_capacity: u64,
        skipped_count: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_backend_select(
        options: *const wcuda_selection_options,
        selection: *mut wcuda_selection,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_backend_error_name(status: wcuda_status) -> *const c_char;
}

c_struct! {
    wcuda_backend {
        id: u64,
    }
}

pub type wcuda_trace_callback = Option<unsafe extern "C" fn(user: *mut c_void, line: wcuda_string)>;

pub const WCUDA_BACKEND_WITH_FAULTS: u32 = 1 << 0;
c_struct! {
    sized wcuda_backend_options {
        struct_size: u32,
        r#type: i32,
        ordinal: i32,
        flags: u32,
        memory_budget: u64,
        host_thread_count: u32,
        reserved: u32,
        trace: wcuda_trace_callback,
        trace_user: *mut c_void,
        library_folder: wcuda_string,
    }
}

unsafe extern "C" {
    pub fn wcuda_backend_open(
        options: *const wcuda_backend_options,
        backend: *mut wcuda_backend,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_backend_close(backend: wcuda_backend);
}

c_struct! {
    sized wcuda_backend_info {
        struct_size: u32,
        r#type: i32,
        ordinal: i32,
        device_count: u32,
        is_traced: i32,
        has_faults: i32,
        live_count: u64,
        name: [c_char; 32],
        fallback_reason: [c_char; 512],
    }
}

unsafe extern "C" {
    pub fn wcuda_backend_info_get(
        backend: wcuda_backend,
        info: *mut wcuda_backend_info,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_backend_context_create(
        backend: wcuda_backend,
        context: *mut wcuda_context,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

pub const WCUDA_MEMORY_DEVICE: u32 = 1 << 0;
pub const WCUDA_MEMORY_HOST_VISIBLE: u32 = 1 << 1;
pub const WCUDA_MEMORY_HOST_COHERENT: u32 = 1 << 2;
pub const WCUDA_MEMORY_CACHED: u32 = 1 << 3;
c_struct! {
    wcuda_device_memory {
        id: u64,
        bytes: u64,
    }
}

c_struct! {
    wcuda_backend_kernel {
        id: u64,
    }
}

c_struct! {
    sized wcuda_backend_vtable {
        struct_size: u32,
        reserved: u32,
        deinit: Option<unsafe extern "C" fn(instance: *mut c_void)>,
        get_device_count: Option<unsafe extern "C" fn(instance: *mut c_void) -> u32>,
        get_device_caps: Option<unsafe extern "C" fn(instance: *mut c_void, device: u32, caps: *mut wcuda_device_caps, error: *mut wcuda_error) -> wcuda_status>,
        allocate: Option<unsafe extern "C" fn(instance: *mut c_void, bytes: u64, flags: u8, memory: *mut wcuda_device_memory, error: *mut wcuda_error) -> wcuda_status>,
        free: Option<unsafe extern "C" fn(instance: *mut c_void, memory: wcuda_device_memory, error: *mut wcuda_error) -> wcuda_status>,
        copy_to_device: Option<unsafe extern "C" fn(instance: *mut c_void, target: wcuda_device_memory, offset: u64, source: *const c_void, bytes: u64, error: *mut wcuda_error) -> wcuda_status>,
        copy_from_device: Option<unsafe extern "C" fn(instance: *mut c_void, target: *mut c_void, source: wcuda_device_memory, offset: u64, bytes: u64, error: *mut wcuda_error) -> wcuda_status>,
        copy_to_device_async: Option<unsafe extern "C" fn(instance: *mut c_void, target: wcuda_device_memory, offset: u64, source: *const c_void, bytes: u64, stream: wcuda_stream, error: *mut wcuda_error) -> wcuda_status>,
        copy_from_device_async: Option<unsafe extern "C" fn(instance: *mut c_void, target: *mut c_void, source: wcuda_device_memory, offset: u64, bytes: u64, stream: wcuda_stream, error: *mut wcuda_error) -> wcuda_status>,
        compile_kernel: Option<unsafe extern "C" fn(instance: *mut c_void, source: wcuda_string, entry: wcuda_string, kernel: *mut wcuda_backend_kernel, error: *mut wcuda_error) -> wcuda_status>,
        launch_kernel: Option<unsafe extern "C" fn(instance: *mut c_void, kernel: wcuda_backend_kernel, config: *const wcuda_launch, arguments: *const wcuda_argument, argument_count: u64, error: *mut wcuda_error) -> wcuda_status>,
        destroy_kernel: Option<unsafe extern "C" fn(instance: *mut c_void, kernel: wcuda_backend_kernel, error: *mut wcuda_error) -> wcuda_status>,
        synchronize: Option<unsafe extern "C" fn(instance: *mut c_void, error: *mut wcuda_error) -> wcuda_status>,
        copy_on_device: Option<unsafe extern "C" fn(instance: *mut c_void, target: wcuda_device_memory, target_offset: u64, source: wcuda_device_memory, source_offset: u64, bytes: u64, stream: wcuda_stream, error: *mut wcuda_error) -> wcuda_status>,
        fill: Option<unsafe extern "C" fn(instance: *mut c_void, memory: wcuda_device_memory, offset: u64, bytes: u64, pattern: u64, pattern_bytes: u32, stream: wcuda_stream, error: *mut wcuda_error) -> wcuda_status>,
        stream_create: Option<unsafe extern "C" fn(instance: *mut c_void, priority: i32, stream: *mut wcuda_stream, error: *mut wcuda_error) -> wcuda_status>,
        stream_destroy: Option<unsafe extern "C" fn(instance: *mut c_void, stream: wcuda_stream, error: *mut wcuda_error) -> wcuda_status>,
        stream_synchronize: Option<unsafe extern "C" fn(instance: *mut c_void, stream: wcuda_stream, error: *mut wcuda_error) -> wcuda_status>,
        event_create: Option<unsafe extern "C" fn(instance: *mut c_void, event: *mut wcuda_event, error: *mut wcuda_error) -> wcuda_status>,
        event_destroy: Option<unsafe extern "C" fn(instance: *mut c_void, event: wcuda_event, error: *mut wcuda_error) -> wcuda_status>,
        event_record: Option<unsafe extern "C" fn(instance: *mut c_void, event: wcuda_event, stream: wcuda_stream, error: *mut wcuda_error) -> wcuda_status>,
        event_order: Option<unsafe extern "C" fn(instance: *mut c_void, event: wcuda_event, stream: wcuda_stream, error: *mut wcuda_error) -> wcuda_status>,
        event_synchronize: Option<unsafe extern "C" fn(instance: *mut c_void, event: wcuda_event, error: *mut wcuda_error) -> wcuda_status>,
        event_done: Option<unsafe extern "C" fn(instance: *mut c_void, event: wcuda_event, done: *mut i32, error: *mut wcuda_error) -> wcuda_status>,
        event_elapsed: Option<unsafe extern "C" fn(instance: *mut c_void, start: wcuda_event, end: wcuda_event, milliseconds: *mut f64, error: *mut wcuda_error) -> wcuda_status>,
        memory_info: Option<unsafe extern "C" fn(instance: *mut c_void, free_bytes: *mut u64, total_bytes: *mut u64, error: *mut wcuda_error) -> wcuda_status>,
        fault: Option<unsafe extern "C" fn(instance: *mut c_void, error: *mut wcuda_error) -> wcuda_status>,
        host_address: Option<unsafe extern "C" fn(instance: *mut c_void, memory: wcuda_device_memory, address: *mut *mut c_void, error: *mut wcuda_error) -> wcuda_status>,
    }
}

unsafe extern "C" {
    pub fn wcuda_backend_table_get(
        backend: wcuda_backend,
        table: *mut *const wcuda_backend_vtable,
        instance: *mut *mut c_void,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

c_struct! {
    sized wcuda_backend_registration {
        struct_size: u32,
        priority: i32,
        name: wcuda_string,
        table: *const wcuda_backend_vtable,
        open: Option<unsafe extern "C" fn(user: *mut c_void, ordinal: i32, instance: *mut *mut c_void, error: *mut wcuda_error) -> wcuda_status>,
        user: *mut c_void,
    }
}

unsafe extern "C" {
    pub fn wcuda_backend_register(
        registration: *const wcuda_backend_registration,
        r#type: *mut i32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_backend_unregister(r#type: i32, error: *mut wcuda_error) -> wcuda_status;
}

pub const WCUDA_FAULT_NONE: i32 = 0;
pub const WCUDA_FAULT_ALLOCATE: i32 = 1;
pub const WCUDA_FAULT_COPY: i32 = 2;
pub const WCUDA_FAULT_LAUNCH: i32 = 3;
pub const WCUDA_FAULT_SYNCHRONIZE: i32 = 4;
pub const WCUDA_FAULT_COMPILE: i32 = 5;
pub const WCUDA_FAULT_LOST: i32 = 6;
unsafe extern "C" {
    pub fn wcuda_backend_fault_set(
        backend: wcuda_backend,
        kind: i32,
        k: u64,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

// ---- 21b. Failover: move to the next backend when one fails ----

pub const WCUDA_FAILOVER_NONE: i32 = 0;
pub const WCUDA_FAILOVER_WARN: i32 = 1;
pub const WCUDA_FAILOVER_AUTOMATIC: i32 = 2;
pub const WCUDA_FAILOVER_REASON_DEVICE_LOST: i32 = 1;
pub const WCUDA_FAILOVER_REASON_REPEATED: i32 = 2;
pub const WCUDA_FAILOVER_REASON_OUT_OF_MEMORY: i32 = 3;
pub const WCUDA_FAILOVER_REASON_MANUAL: i32 = 4;
pub const WCUDA_FAILOVER_STARTED: i32 = 1;
pub const WCUDA_FAILOVER_COMPLETED: i32 = 2;
pub const WCUDA_FAILOVER_FAILED: i32 = 3;
pub const WCUDA_FAILOVER_RESTORED: i32 = 4;
pub const WCUDA_FAILOVER_EXHAUSTED: i32 = 5;
c_struct! {
    sized wcuda_failover_event {
        struct_size: u32,
        event: i32,
        reason: i32,
        from: i32,
        to: i32,
        status: wcuda_status,
        message: [c_char; 232],
    }
}

pub type wcuda_failover_callback =
    Option<unsafe extern "C" fn(user: *mut c_void, event: *const wcuda_failover_event)>;

c_struct! {
    sized wcuda_failover_target {
        struct_size: u32,
        r#type: i32,
        ordinal: i32,
        reserved: u32,
    }
}

pub const WCUDA_FAILOVER_ON_OUT_OF_MEMORY: u32 = 1 << 0;
c_struct! {
    sized wcuda_failover_options {
        struct_size: u32,
        mode: i32,
        flags: u32,
        failure_threshold: u32,
        window_ms: u64,
        cooldown_ms: u64,
        recheck_ms: u64,
        targets: *const wcuda_failover_target,
        target_count: u64,
        callback: wcuda_failover_callback,
        user: *mut c_void,
    }
}

c_struct! {
    wcuda_failover {
        id: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_failover_create(
        options: *const wcuda_failover_options,
        failover: *mut wcuda_failover,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_failover_destroy(failover: wcuda_failover);
    pub fn wcuda_failover_context_create(
        failover: wcuda_failover,
        options: *const wcuda_context_options,
        context: *mut wcuda_context,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

pub type wcuda_failover_body = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        context: wcuda_context,
        error: *mut wcuda_error,
    ) -> wcuda_status,
>;

unsafe extern "C" {
    pub fn wcuda_failover_call(
        failover: wcuda_failover,
        body: wcuda_failover_body,
        user: *mut c_void,
        r#type: *mut i32,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_failover_report(
        failover: wcuda_failover,
        r#type: i32,
        status: wcuda_status,
        error: *mut wcuda_error,
    ) -> wcuda_status;
    pub fn wcuda_failover_trigger(
        failover: wcuda_failover,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}

c_struct! {
    sized wcuda_failover_state {
        struct_size: u32,
        r#type: i32,
        ordinal: i32,
        is_degraded: i32,
        failure_count: u64,
        move_count: u64,
        restore_count: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_failover_state_get(
        failover: wcuda_failover,
        state: *mut wcuda_failover_state,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}
