//! A limit of processor time for tests with very many inputs.
#![allow(dead_code)] // a bench that includes this needs only the time

use std::sync::OnceLock;

/// Runs `work`, which may take INPUT_MS_MAX milliseconds of this thread's processor time, where the environment sets
/// that.
pub fn limited<T>(work: impl FnOnce() -> T) -> T {
    static MOST: OnceLock<Option<u64>> = OnceLock::new();
    let Some(most) = *MOST.get_or_init(|| std::env::var("INPUT_MS_MAX").ok()?.parse().ok()) else {
        return work();
    };
    let begin = processor_nanoseconds();
    let result = work();
    let took = (processor_nanoseconds() - begin) / 1_000_000;
    assert!(took <= most, "{took} ms");
    result
}

/// As Linux counts them: others use the machine too.
pub fn processor_nanoseconds() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let first = text.split(' ').next().expect("a number");
    first.parse().expect("a number")
}
