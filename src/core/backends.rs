//! Types of backends on this machine.

use crate::core::device::Backend;
use crate::core::error::{ErrorKind, Result, call};
use crate::core::native_text::fixed_text;
use crate::ffi;

/// One type of backend on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendEntry {
    /// "cuda", "host", "vulkan", or the name that it was registered with.
    pub name: String,
    /// Its type.
    pub backend: Backend,
    /// The automatic choice tries the highest priority first.
    pub priority: i32,
    /// Number of its devices, or why it has none.
    pub devices: std::result::Result<i32, (ErrorKind, String)>,
}

impl BackendEntry {
    /// Whether it can be opened.
    pub fn is_available(&self) -> bool {
        self.devices.is_ok()
    }
}

/// All types of backends, highest priority first.
///
/// ```
/// # fn main() -> worker_cuda::Result<()> {
/// for entry in worker_cuda::backends()? {
///     match entry.devices {
///         Ok(count) => println!("{}: {count} devices", entry.name),
///         Err((_, reason)) => println!("{}: {reason}", entry.name),
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub fn backends() -> Result<Vec<BackendEntry>> {
    let mut count = 0;
    // SAFETY: no entries are asked for.
    call(|error| unsafe {
        ffi::wcuda_backend_list(0, std::ptr::null_mut(), 0, &mut count, error)
    })?;
    let mut entries = vec![ffi::wcuda_backend_entry::init(); count as usize];
    let capacity = count;
    // SAFETY: there is room for `capacity` entries, each sized.
    call(|error| unsafe {
        ffi::wcuda_backend_list(0, entries.as_mut_ptr(), capacity, &mut count, error)
    })?;
    entries.truncate(count as usize);
    Ok(entries.iter().map(entry).collect())
}

fn entry(from: &ffi::wcuda_backend_entry) -> BackendEntry {
    BackendEntry {
        name: fixed_text(&from.name),
        backend: Backend::from_native(from.r#type),
        priority: from.priority,
        devices: if from.is_available != 0 {
            Ok(from.device_count)
        } else {
            Err((
                ErrorKind::from_status(from.status),
                fixed_text(&from.reason),
            ))
        },
    }
}

/// The name of a type by its number.
pub(crate) fn name_of(backend: i32) -> String {
    backends()
        .into_iter()
        .flatten()
        .find(|entry| entry.backend.to_native() == backend)
        .map_or_else(|| format!("backend {backend}"), |entry| entry.name)
}
