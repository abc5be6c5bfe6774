//! Declarations of the C interface: one file per header, in the order of the header. The headers are the
//! manual.
//!
//! This module is not part of the crate's stable interface; use the safe types. Enumerations are integers
//! here, because a later archive may return values that this version does not know. `layout()` lists every
//! struct and field as Rust lays them out, and a test compares this list with the archive's own list.
#![allow(non_camel_case_types, missing_docs)]

use std::ffi::{c_char, c_void};

/// One row of the layout table: a struct as a whole (`field` empty), or one of its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutRow {
    pub structure: &'static str,
    pub field: &'static str,
    pub offset: usize,
    pub bytes: usize,
    pub alignment: usize,
}

/// Every `c_struct!` of a file must be listed in its `push_layout`; the layout test finds the one that is not.
pub fn layout() -> Vec<LayoutRow> {
    let mut rows = Vec::new();
    base::push_layout(&mut rows);
    llm::push_layout(&mut rows);
    compute::push_layout(&mut rows);
    backend::push_layout(&mut rows);
    zctl::push_layout(&mut rows);
    rows
}

/// A struct of the header with its layout rows. `sized` marks those that begin with `struct_size`;
/// their `init()` is the header's `…_INIT`: everything zero but the size.
macro_rules! c_struct {
    ($name:ident { $($field:ident: $type:ty,)* }) => {
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name { $(pub $field: $type,)* }

        impl $name {
            /// All bytes zero.
            pub const fn zeroed() -> Self {
                // SAFETY: integers, floats, raw pointers, `Option<fn>` and arrays of them, for all
                // of which zero bytes are a value.
                unsafe { std::mem::zeroed() }
            }

            fn push_layout(rows: &mut Vec<LayoutRow>) {
                rows.push(LayoutRow {
                    structure: stringify!($name),
                    field: "",
                    offset: 0,
                    bytes: size_of::<$name>(),
                    alignment: align_of::<$name>(),
                });
                $(rows.push(LayoutRow {
                    structure: stringify!($name),
                    field: stringify!($field).trim_start_matches("r#"),
                    offset: std::mem::offset_of!($name, $field),
                    bytes: size_of::<$type>(),
                    alignment: align_of::<$type>(),
                });)*
            }
        }
    };
    (sized $name:ident { $($field:ident: $type:ty,)* }) => {
        c_struct! { $name { $($field: $type,)* } }

        impl $name {
            pub const fn init() -> Self {
                let mut value = Self::zeroed();
                value.struct_size = size_of::<Self>() as u32;
                value
            }
        }
    };
}

mod backend;
mod base;
mod compat;
mod compute;
mod llm;
mod zctl;

pub use backend::*;
pub use base::*;
pub use compat::*;
pub use compute::*;
pub use llm::*;
pub use zctl::*;
