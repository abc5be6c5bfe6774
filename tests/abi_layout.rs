//! Every struct and field as Rust declares it against the archive's own table.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::ptr::null_mut;

use worker_cuda::ffi;

/// (offset, bytes, alignment) by (struct, field).
type Table = BTreeMap<(String, String), (usize, usize, usize)>;

fn table_of_rust() -> Table {
    ffi::layout()
        .into_iter()
        .map(|row| {
            (
                (row.structure.into(), row.field.into()),
                (row.offset, row.bytes, row.alignment),
            )
        })
        .collect()
}

fn table_of_archive() -> Table {
    let mut count = 0;
    // SAFETY: no rows are asked for, and a null error is allowed.
    let status = unsafe { ffi::wcuda_abi_field_list(0, null_mut(), 0, &mut count, null_mut()) };
    assert_eq!(status, ffi::WCUDA_OK);
    let mut rows = vec![ffi::wcuda_abi_field::init(); count as usize];
    // SAFETY: there is room for `count` rows, each sized.
    let status =
        unsafe { ffi::wcuda_abi_field_list(0, rows.as_mut_ptr(), count, &mut count, null_mut()) };
    assert_eq!(status, ffi::WCUDA_OK);
    rows.into_iter()
        .map(|row| {
            // SAFETY: both names are static texts.
            let [structure, field] =
                [row.struct_name, row.field_name].map(|name| unsafe { CStr::from_ptr(name) });
            let name = |text: &CStr| text.to_str().expect("names are ASCII").to_owned();
            let numbers = (
                row.offset as usize,
                row.bytes as usize,
                row.alignment as usize,
            );
            ((name(structure), name(field)), numbers)
        })
        .collect()
}

#[test]
fn structs_have_the_layout_of_the_archive() {
    let (rust, archive) = (table_of_rust(), table_of_archive());

    let mut differences = Vec::new();
    for name in rust
        .keys()
        .chain(archive.keys())
        .collect::<std::collections::BTreeSet<_>>()
    {
        let (ours, theirs) = (rust.get(name), archive.get(name));
        if ours != theirs {
            differences.push(format!("{name:?}: Rust {ours:?}, archive {theirs:?}"));
        }
    }

    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(
        rust.len() > 200,
        "only {} rows: the tables cannot be whole",
        rust.len()
    );
}

#[test]
fn row_past_the_end_is_refused() {
    let (mut row, mut count) = (ffi::wcuda_abi_field::init(), 0);
    // SAFETY: `row` is valid and sized, and a null error is allowed.
    let status = unsafe { ffi::wcuda_abi_field_list(1 << 20, &mut row, 1, &mut count, null_mut()) };
    assert_eq!(status, ffi::WCUDA_OUT_OF_RANGE);
    assert!(row.struct_name.is_null(), "a failed call wrote its output");
}

#[test]
fn every_status_has_its_name_in_the_archive() {
    for status in [
        ffi::WCUDA_OK,
        ffi::WCUDA_BUSY,
        ffi::WCUDA_DEVICE_LOST,
        ffi::WCUDA_INTERNAL,
    ] {
        // SAFETY: answers with static text.
        let name = unsafe { CStr::from_ptr(ffi::wcuda_status_name(status)) };
        assert_ne!(name.to_bytes(), b"WCUDA_UNKNOWN", "{status}");
    }
    // SAFETY: answers with static text.
    let name = unsafe { CStr::from_ptr(ffi::wcuda_status_name(4242)) };
    assert_eq!(name.to_bytes(), b"WCUDA_UNKNOWN");
}

#[test]
fn header_and_archive_agree_on_versions() {
    assert_eq!(worker_cuda::version::abi_version(), ffi::WCUDA_ABI_VERSION);
    let version = (
        ffi::WCUDA_VERSION_MAJOR,
        ffi::WCUDA_VERSION_MINOR,
        ffi::WCUDA_VERSION_PATCH,
    );
    assert_eq!(
        worker_cuda::version(),
        format!("{}.{}.{}", version.0, version.1, version.2)
    );
    assert!(
        !worker_cuda::build_info()
            .expect("build info")
            .compiler
            .is_empty()
    );
}
