//! Result of a run: where it ran, and its measurements.

use std::time::Duration;

use crate::compute::program::CacheResult;
use crate::core::device::Backend;

/// Whether a kernel may run on another backend than requested. Decided before any work starts, never after.
///
/// ```
/// use worker_cuda::{Fallback, GpuCompute};
/// # fn main() -> worker_cuda::Result<()> {
/// let compute = GpuCompute::open(Fallback::IfUnsupported)?; // on the host where there is no GPU
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// Runs on the requested backend or fails.
    #[default]
    Never,
    /// Runs everything on the host if there is no usable GPU.
    IfNoGpu,
    /// As [`IfNoGpu`](Self::IfNoGpu). In addition, a kernel without code for the GPU (none was given, it is for
    /// another architecture, or there is no compiler) runs its host function on copies of the arguments; its outputs
    /// are copied back if it succeeds. Source that does not compile is still an error.
    IfUnsupported,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ExecutionResult {
    /// Duration of the kernel: measured by events on a GPU, by the clock on the host.
    pub time: Duration,
    /// Number of threads launched, or number of elements of the host function.
    pub elements: u64,
    /// Bytes of memory in the arguments.
    pub bytes: u64,
    /// The backend that ran it.
    pub backend: Backend,
    /// The device's number.
    pub device_id: i32,
    /// Whether a GPU computed it.
    pub gpu_executed: bool,
    /// Why it ran on the host although a GPU was requested; "" otherwise.
    pub fallback_reason: String,
}

impl ExecutionResult {
    /// Bytes per nanosecond.
    pub fn throughput_gbps(&self) -> f64 {
        self.bytes as f64 / self.time.as_nanos().max(1) as f64
    }

    /// Elements per second.
    pub fn elements_per_second(&self) -> f64 {
        self.elements as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// Counters of a [`super::GpuCompute`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ComputeStats {
    /// Kernels whose source was compiled or found in the cache.
    pub compiled: u64,
    /// Runs that succeeded.
    pub executed: u64,
    /// Those of `compiled` that were in the cache.
    pub cache_hits: u64,
    /// Those of `compiled` that were not in the cache, if there is one.
    pub cache_misses: u64,
}

impl ComputeStats {
    /// Fraction of lookups that were hits, 0 to 1; 0 without lookups.
    pub fn cache_hit_rate(&self) -> f64 {
        let lookups = self.cache_hits + self.cache_misses;
        self.cache_hits as f64 / lookups.max(1) as f64
    }

    /// Counts one more compile.
    pub(super) fn count_compile(&mut self, cache: CacheResult) {
        self.compiled += 1;
        match cache {
            CacheResult::Hit => self.cache_hits += 1,
            CacheResult::Miss => self.cache_misses += 1,
            CacheResult::None | CacheResult::Bypassed => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_are_hits_and_misses() {
        let mut stats = ComputeStats::default();
        assert_eq!(stats.cache_hit_rate(), 0.0);
        for cache in [
            CacheResult::Miss,
            CacheResult::Hit,
            CacheResult::Hit,
            CacheResult::Hit,
            CacheResult::Bypassed,
            CacheResult::None,
        ] {
            stats.count_compile(cache);
        }
        assert_eq!((stats.compiled, stats.cache_hits), (6, 3));
        assert_eq!(stats.cache_hit_rate(), 0.75);
    }
}
