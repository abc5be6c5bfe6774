//! Version and build of the linked archive.
//!
//! ```
//! # fn main() -> worker_cuda::Result<()> {
//! assert_eq!(worker_cuda::version().split('.').count(), 3);
//! println!("built with {}", worker_cuda::build_info()?.compiler);
//! # Ok(())
//! # }
//! ```

use crate::core::error::{Error, ErrorKind, Result, call};
use crate::core::native_text::static_text;
use crate::ffi;

/// What the native archive was built with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BuildInfo {
    /// Built with CUDA.
    pub has_cuda: bool,
    /// CUDA toolkit, major * 1000 + minor * 10; 0 without CUDA.
    pub cuda_version: u32,
    /// "90a;100"; "" without CUDA.
    pub cuda_architectures: &'static str,
    /// "GNU 12.2.0".
    pub compiler: &'static str,
    /// "Release".
    pub build_type: &'static str,
    /// SIMD variants that were compiled in ("avx2;avx512"); the best is chosen at run time.
    pub host_features: &'static str,
}

/// Version of the native archive, "major.minor.patch".
pub fn version() -> &'static str {
    // SAFETY: takes nothing and answers with static text.
    unsafe { static_text(ffi::wcuda_version_string()) }
}

/// ABI number of the native archive.
pub fn abi_version() -> u32 {
    // SAFETY: takes nothing.
    unsafe { ffi::wcuda_abi_version() }
}

/// What the native archive was built with.
pub fn build_info() -> Result<BuildInfo> {
    let mut info = ffi::wcuda_build_info::init();
    // SAFETY: `info` is valid and sized.
    call(|error| unsafe { ffi::wcuda_build_info_get(&mut info, error) })?;
    // SAFETY: the header promises static texts.
    let text = |text| unsafe { static_text(text) };
    Ok(BuildInfo {
        has_cuda: info.has_cuda != 0,
        cuda_version: info.cuda_version,
        cuda_architectures: text(info.cuda_architectures),
        compiler: text(info.compiler),
        build_type: text(info.build_type),
        host_features: text(info.host_features),
    })
}

/// Whether the archive was built with CUDA; false also if the query fails.
pub fn built_with_cuda() -> bool {
    build_info().is_ok_and(|info| info.has_cuda)
}

pub(crate) fn check_abi() -> Result<()> {
    let archive = abi_version();
    if archive == ffi::WCUDA_ABI_VERSION {
        return Ok(());
    }
    let crate_number = ffi::WCUDA_ABI_VERSION;
    let message = format!("the archive has ABI number {archive}, this crate {crate_number}");
    Err(Error::new(ErrorKind::AbiMismatch, message))
}
