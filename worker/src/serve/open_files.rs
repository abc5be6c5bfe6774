//! The limit of the process on open files, which each connection needs one of.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Open files besides those of connections: of the runtime, the log, and the device's driver.
const OTHER_FILES: u64 = 256;

/// Raises the soft limit to the hard one. Returns a warning if so many connections do not fit into it.
pub fn raise_limit(connections: usize) -> Option<String> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    let raised = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    shortage(raised.map_or(soft, |()| hard), connections)
}

fn shortage(limit: u64, connections: usize) -> Option<String> {
    let needed = connections as u64 + OTHER_FILES;
    let message = format!(
        "{connections} connections need {needed} open files, the hard limit is {limit} (ulimit -Hn)"
    );
    (limit < needed).then_some(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_a_warning_with_the_numbers() {
        assert_eq!(shortage(4352, 4096), None);
        assert_eq!(shortage(u64::MAX, 4096), None);
        let message = shortage(4351, 4096).expect("a shortage");
        assert!(message.contains("need 4352 open files"), "{message}");
        assert!(message.contains("limit is 4351"), "{message}");
    }
}
