//! Matrix products (section 20).

use super::*;

pub(super) fn push_layout(rows: &mut Vec<LayoutRow>) {
    wcuda_gemm::push_layout(rows);
}

// ---- 20. Matrix products ----

pub const WCUDA_GEMM_F32: i32 = 1;
pub const WCUDA_GEMM_TF32: i32 = 2;
pub const WCUDA_GEMM_F16: i32 = 3;
pub const WCUDA_GEMM_BF16: i32 = 4;
pub const WCUDA_GEMM_FP8: i32 = 5;
pub const WCUDA_GEMM_F64: i32 = 6;
pub const WCUDA_GEMM_INT8: i32 = 7;
pub const WCUDA_GEMM_TRANSPOSE_A: u32 = 1 << 0;
pub const WCUDA_GEMM_TRANSPOSE_B: u32 = 1 << 1;
pub const WCUDA_ACTIVATION_NONE: i32 = 0;
pub const WCUDA_ACTIVATION_RELU: i32 = 1;
pub const WCUDA_ACTIVATION_GELU: i32 = 2;

c_struct! {
    sized wcuda_gemm {
        struct_size: u32,
        flags: u32,
        r#type: i32,
        output_type: i32,
        activation: i32,
        alpha: f32,
        beta: f32,
        reserved: u32,
        m: u64,
        n: u64,
        k: u64,
        batch: u64,
        row_stride_a: u64,
        row_stride_b: u64,
        row_stride_c: u64,
        batch_stride_a: u64,
        batch_stride_b: u64,
        batch_stride_c: u64,
    }
}

unsafe extern "C" {
    pub fn wcuda_gemm_run(
        context: wcuda_context,
        gemm: *const wcuda_gemm,
        arguments: *const wcuda_argument,
        argument_count: u64,
        stream: wcuda_stream,
        error: *mut wcuda_error,
    ) -> wcuda_status;
}
