//! SentencePiece BPE: neighbours merge by the score of the merged token; unknown characters become bytes.
//!
//! The merged token has the score, not the pair: two pairs that form the same token are equal, and the leftmost
//! merges first. A token that the model calls unused may be merged on; where it stays, it is split again, as
//! SentencePiece does.

use std::collections::{HashMap, HashSet};

use super::merge::{Merger, NO_TOKEN, Pairs};
use super::vocabulary::{TokenType, Vocabulary, byte_of};
use crate::core::error::{Error, ErrorKind, Result};

/// Stands for a space in tokens.
pub(crate) const SPACE_MARK: char = '\u{2581}';

/// A SentencePiece BPE tokenizer for text without special tokens.
pub(crate) struct SentencePiece {
    /// Tokens that merging may make.
    pieces: Pieces,
    /// The token of each byte.
    bytes: [Option<u32>; 256],
    /// What text becomes that has neither a token nor byte tokens.
    unknown: Option<u32>,
}

struct Pieces {
    /// Text to (priority, id); the priority orders like the score.
    by_text: HashMap<Box<str>, (u32, u32)>,
    unused: HashSet<u32>,
}

impl Pairs for Pieces {
    fn join(&self, _: u32, _: u32, both: &str) -> Option<(u32, u32)> {
        self.by_text.get(both).copied()
    }

    fn is_unused(&self, id: u32) -> bool {
        self.unused.contains(&id)
    }
}

/// A number that orders like `score`, which is not NaN; -0.0 and 0.0 are one score.
fn priority(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 0 {
        bits | 1 << 31
    } else {
        !bits
    }
}

impl SentencePiece {
    /// Builds the tables. Control, unknown and byte tokens, by `types`, are never the result of merging.
    pub(crate) fn new(vocabulary: &Vocabulary, types: &[TokenType]) -> Result<Self> {
        if vocabulary.scores.is_empty() {
            return Err(Error::new(
                ErrorKind::Malformed,
                "a SentencePiece vocabulary needs tokenizer.ggml.scores",
            ));
        }
        let mut by_text = HashMap::with_capacity(vocabulary.tokens.len());
        let mut unused = HashSet::new();
        let tokens = vocabulary.tokens.iter().zip(&vocabulary.scores).zip(types);
        for (id, ((text, &score), token_type)) in (0u32..).zip(tokens) {
            if matches!(
                token_type,
                TokenType::Normal | TokenType::UserDefined | TokenType::Unused
            ) {
                by_text
                    .entry(text.as_str().into())
                    .or_insert((priority(score), id));
            }
            if *token_type == TokenType::Unused {
                unused.insert(id);
            }
        }
        Ok(SentencePiece {
            pieces: Pieces { by_text, unused },
            bytes: byte_tokens(vocabulary, types),
            unknown: vocabulary.unk_id,
        })
    }

    /// Appends the ids of `text`, in which spaces are marks already.
    pub(crate) fn encode(&self, text: &str, merger: &mut Merger, out: &mut Vec<u32>) -> Result<()> {
        let characters = text.chars().map(|c| (NO_TOKEN, c.len_utf8()));
        merger.merge(text, characters, &self.pieces)?;
        let mut rest = Vec::new();
        for symbol in merger.symbols() {
            // Not by recursion: a vocabulary may nest unused tokens as deep as it likes.
            rest.push(symbol.text(text));
            while let Some(part) = rest.pop() {
                let id = self.pieces.by_text.get(part).map(|&(_, id)| id);
                match id.and_then(|id| merger.split_of(id)) {
                    Some(left) => rest.extend([&part[left..], &part[..left]]),
                    None => self.emit(id, part, out),
                }
            }
        }
        Ok(())
    }

    /// Appends the token `id`, or the bytes of `text`, or the unknown token.
    fn emit(&self, id: Option<u32>, text: &str, out: &mut Vec<u32>) {
        match id {
            Some(id) => out.push(id),
            None if push_bytes(text, &self.bytes, out) => {}
            None => out.extend(self.unknown),
        }
    }
}

/// The token of each byte, `<0xHH>`; of equal ones the first counts.
pub(crate) fn byte_tokens(vocabulary: &Vocabulary, types: &[TokenType]) -> [Option<u32>; 256] {
    let mut bytes = [None; 256];
    for (id, (text, token_type)) in (0u32..).zip(vocabulary.tokens.iter().zip(types)) {
        if *token_type == TokenType::Byte
            && let Some(byte) = byte_of(text)
        {
            bytes[usize::from(byte)].get_or_insert(id);
        }
    }
    bytes
}

/// Appends the tokens of the bytes of `text`, or nothing if a byte has none.
pub(crate) fn push_bytes(text: &str, bytes: &[Option<u32>; 256], out: &mut Vec<u32>) -> bool {
    let begin = out.len();
    for byte in text.bytes() {
        match bytes[usize::from(byte)] {
            Some(id) => out.push(id),
            None => {
                out.truncate(begin);
                return false;
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary(tokens: &[(&str, f32, TokenType)]) -> Vocabulary {
        Vocabulary {
            model: "llama".into(),
            tokens: tokens.iter().map(|t| t.0.into()).collect(),
            scores: tokens.iter().map(|t| t.1).collect(),
            token_types: tokens.iter().map(|t| t.2).collect(),
            unk_id: Some(0),
            ..Vocabulary::default()
        }
    }

    fn encode(vocabulary: &Vocabulary, text: &str) -> Vec<String> {
        let mut ids = Vec::new();
        SentencePiece::new(vocabulary, &vocabulary.token_types)
            .unwrap()
            .encode(text, &mut Merger::default(), &mut ids)
            .unwrap();
        ids.iter()
            .map(|&id| vocabulary.tokens[id as usize].clone())
            .collect()
    }

    use TokenType::{Byte, Control, Normal, Unknown};

    #[test]
    fn the_highest_score_merges_first_then_the_leftmost() {
        let vocabulary = vocabulary(&[
            ("<unk>", 0.0, Unknown),
            ("a", -10.0, Normal),
            ("b", -11.0, Normal),
            ("ab", -2.0, Normal),
            ("ba", -1.0, Normal),
            ("aba", -3.0, Normal),
        ]);

        assert_eq!(encode(&vocabulary, "ab"), ["ab"]);
        assert_eq!(encode(&vocabulary, "aba"), ["aba"]);
        assert_eq!(encode(&vocabulary, "abab"), ["aba", "b"]);
        assert_eq!(encode(&vocabulary, ""), [""; 0]);
    }

    #[test]
    fn characters_without_a_token_become_bytes_else_unknown() {
        let bytes = vocabulary(&[
            ("<unk>", 0.0, Unknown),
            ("<0xC3>", 0.0, Byte),
            ("<0xA9>", 0.0, Byte),
            ("x", 0.0, Normal),
        ]);

        assert_eq!(encode(&bytes, "xé"), ["x", "<0xC3>", "<0xA9>"]);
        assert_eq!(encode(&bytes, "xèx"), ["x", "<unk>", "x"]);
    }

    #[test]
    fn control_tokens_never_come_from_text() {
        let vocabulary = vocabulary(&[
            ("<unk>", 0.0, Unknown),
            ("<", -1.0, Normal),
            ("s>", -1.0, Normal),
            ("s", -1.0, Normal),
            (">", -1.0, Normal),
            ("<s>", 0.0, Control),
        ]);

        assert_eq!(encode(&vocabulary, "<s>"), ["<", "s>"]);
    }

    #[test]
    fn scores_are_needed() {
        let mut vocabulary = vocabulary(&[("a", 0.0, Normal)]);
        vocabulary.scores.clear();

        assert!(SentencePiece::new(&vocabulary, &vocabulary.token_types).is_err());
    }

    #[test]
    fn priorities_order_like_scores() {
        let scores = [
            f32::NEG_INFINITY,
            -3.5,
            -1e-30,
            0.0,
            1e-30,
            2.0,
            f32::INFINITY,
        ];

        assert!(scores.map(priority).is_sorted());
        assert_eq!(priority(-0.0), priority(0.0));
    }
}
