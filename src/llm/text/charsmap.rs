//! SentencePiece's precompiled normalization: a double-array trie from character sequences to what they
//! become.
//!
//! Layout: u32 size of the trie in bytes, the trie (u32 units, little endian), the replacements, each
//! ended by a NUL byte. A unit of the trie is described in darts-clone's darts.h.

use super::vocabulary::shortened;
use crate::core::error::{Error, ErrorKind, Result};

/// Replacements of character sequences.
pub(crate) struct Charsmap {
    units: Vec<u32>,
    replacements: Vec<u8>,
}

impl Charsmap {
    /// Reads a map. An empty one changes nothing.
    pub(crate) fn new(bytes: &[u8]) -> Result<Self> {
        if bytes.is_empty() {
            return Ok(Charsmap {
                units: Vec::new(),
                replacements: Vec::new(),
            });
        }
        let malformed = |what: String| {
            let message = format!("tokenizer.ggml.precompiled_charsmap: {what}");
            Error::new(ErrorKind::Malformed, message)
        };
        let Some((size, rest)) = bytes.split_first_chunk::<4>() else {
            return Err(malformed(format!("{} bytes, 4 at least", bytes.len())));
        };
        let size = u32::from_le_bytes(*size) as usize;
        if !size.is_multiple_of(4) || size > rest.len() {
            return Err(malformed(format!(
                "a trie of {size} bytes, {} remain",
                rest.len()
            )));
        }
        let (trie, replacements) = rest.split_at(size);
        if std::str::from_utf8(replacements).is_err() {
            let lossy = String::from_utf8_lossy(replacements);
            return Err(malformed(format!(
                "its replacements are not UTF-8: '{}'",
                shortened(&lossy)
            )));
        }
        let units = trie
            .chunks_exact(4)
            .map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]))
            .collect();
        Ok(Charsmap {
            units,
            replacements: replacements.to_vec(),
        })
    }

    /// The longest sequence at the beginning of `text` that has a replacement: its length, which ends at
    /// a character, and the replacement.
    pub(crate) fn longest<'c>(&'c self, text: &str) -> Option<(usize, &'c str)> {
        let mut node = 0usize;
        let mut unit = *self.units.first()?;
        node ^= offset(unit);
        let mut found = None;
        for (index, byte) in text.bytes().enumerate() {
            if byte == 0 {
                break;
            }
            node ^= usize::from(byte);
            let Some(&next) = self.units.get(node) else {
                break;
            };
            unit = next;
            if unit & (1 << 31 | 0xff) != u32::from(byte) {
                break;
            }
            node ^= offset(unit);
            let end = index + 1;
            if unit >> 8 & 1 == 1
                && text.is_char_boundary(end)
                && let Some(&leaf) = self.units.get(node)
                && let Some(replacement) = self.replacement((leaf & 0x7fff_ffff) as usize)
            {
                found = Some((end, replacement));
            }
        }
        found
    }

    /// The text that begins at `begin` and ends before a NUL byte.
    fn replacement(&self, begin: usize) -> Option<&str> {
        let rest = self.replacements.get(begin..)?;
        let end = rest.iter().position(|&byte| byte == 0)?;
        std::str::from_utf8(&rest[..end]).ok()
    }
}

/// How far a unit's children are from it.
fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_maps_are_errors_and_never_panic() {
        assert!(Charsmap::new(&[1, 0, 0]).is_err());
        assert!(Charsmap::new(&[8, 0, 0, 0, 1, 2, 3, 4]).is_err());
        assert!(Charsmap::new(&[3, 0, 0, 0, 1, 2, 3]).is_err());
        assert!(Charsmap::new(&[0, 0, 0, 0, 0xff, 0]).is_err());

        // A trie that ends with the bytes replaces nothing.
        let bare = Charsmap::new(&[4, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        assert_eq!(bare.longest("abc"), None);

        // A trie whose offsets lead out of it.
        let wild = [&[4, 0, 0, 0][..], &u32::MAX.to_le_bytes(), b"x\0"].concat();
        assert_eq!(Charsmap::new(&wild).unwrap().longest("abc"), None);
        assert_eq!(Charsmap::new(&[]).unwrap().longest("abc"), None);
    }
}
