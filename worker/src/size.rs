//! Sizes and counts as people read them.

use indicatif::{HumanBytes, HumanCount};

/// "1.50 GiB".
pub fn short(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}

/// "1.50 GiB (1,610,612,736 bytes)"; below a KiB "512 bytes".
pub fn exact(bytes: u64) -> String {
    let count = count(bytes);
    if bytes < 1024 {
        format!("{count} bytes")
    } else {
        format!("{} ({count} bytes)", short(bytes))
    }
}

/// "128,256".
pub fn count(number: u64) -> String {
    HumanCount(number).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit_and_the_exact_bytes() {
        assert_eq!(exact(0), "0 bytes");
        assert_eq!(exact(1023), "1,023 bytes");
        assert_eq!(exact(1_610_612_736), "1.50 GiB (1,610,612,736 bytes)");
        assert_eq!(short(152_768), "149.19 KiB");
        assert_eq!(count(128_256), "128,256");
    }
}
