//! Result of a run: where it ran, and its figures.

use std::time::Duration;

use crate::compute::program::CacheResult;
use crate::core::device::Backend;

/// When a kernel may run elsewhere than asked. Decided before any work starts, never after.
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
    /// It runs where it was asked to, or not at all.
    #[default]
    Never,
    /// Where there is no usable GPU, everything runs on the host.
    IfNoGpu,
    /// That too, and on a GPU a kernel without code for it (none was given, it is for another
    /// architecture, or there is no compiler) runs its host function, on copies of the arguments; what
    /// that writes is copied back when it succeeds. A source that does not compile stays an error.
    IfUnsupported,
}

/// What a run did.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ExecutionResult {
    /// Of the kernel: by events on a GPU, by the clock on the host.
    pub time: Duration,
    /// Threads asked for, or elements the host function was to work on.
    pub elements: u64,
    /// Memory that the arguments cover.
    pub bytes: u64,
    /// Where it ran.
    pub backend: Backend,
    /// The device's number.
    pub device_id: i32,
    /// Whether a GPU computed it.
    pub gpu_executed: bool,
    /// Why it ran on the host although a GPU was asked for; "" otherwise.
    pub fallback_reason: String,
}

impl ExecutionResult {
    /// Bytes a nanosecond.
    pub fn throughput_gbps(&self) -> f64 {
        self.bytes as f64 / self.time.as_nanos().max(1) as f64
    }

    /// Elements a second.
    pub fn elements_per_second(&self) -> f64 {
        self.elements as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// Counts of a [`super::GpuCompute`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ComputeStats {
    /// Kernels whose source was compiled or found in the cache.
    pub compiled: u64,
    /// Runs that succeeded.
    pub executed: u64,
    /// Of `compiled`: the code was in the cache.
    pub cache_hits: u64,
    /// Of `compiled`: there is a cache, and the code was not in it.
    pub cache_misses: u64,
}

impl ComputeStats {
    /// Hits among the lookups, 0 to 1; 0 without any.
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
