//! SentencePiece BPE: neighbours merge by the score of what they become; unknown characters are bytes.
//!
//! Own code, because the `tokenizers` crate merges by the rank of a pair, and here it is the merged
//! token that has the score: two pairs that make the same token are equal, and the leftmost goes first.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::vocabulary::{TokenType, Vocabulary, byte_of};
use crate::core::error::{Error, ErrorKind, Result};

/// Stands for a space in tokens.
pub(crate) const SPACE_MARK: char = '\u{2581}';

/// A SentencePiece BPE tokenizer for text without special tokens.
pub(crate) struct SentencePiece {
    /// Tokens that merging may make, with their scores.
    pieces: HashMap<Box<str>, (u32, f32)>,
    /// The token of each byte.
    bytes: [Option<u32>; 256],
    /// What text becomes that has neither a token nor byte tokens.
    unknown: Option<u32>,
}

/// A run of text that is one token so far; `bytes` 0 means that its left neighbour has taken it.
#[derive(Clone, Copy)]
struct Symbol {
    begin: u32,
    bytes: u32,
    previous: u32,
    next: u32,
}

const NONE: u32 = u32::MAX;

/// Two neighbours that may merge. The greatest goes first: highest score, then leftmost.
struct Candidate {
    score: f32,
    left: u32,
    right: u32,
    /// Length of both together; another length means that one of them has changed since.
    bytes: u32,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score
            .total_cmp(&other.score)
            .then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

impl SentencePiece {
    /// Builds the tables. Control, unknown and byte tokens are never the result of merging.
    pub(crate) fn new(vocabulary: &Vocabulary) -> Result<Self> {
        if vocabulary.scores.is_empty() {
            return Err(Error::new(
                ErrorKind::Malformed,
                "a SentencePiece vocabulary needs tokenizer.ggml.scores",
            ));
        }
        let mut pieces = HashMap::with_capacity(vocabulary.tokens.len());
        let mut bytes = [None; 256];
        for (id, (text, &score)) in (0u32..).zip(vocabulary.tokens.iter().zip(&vocabulary.scores)) {
            match vocabulary.token_type(id) {
                TokenType::Control | TokenType::Unknown => {}
                TokenType::Byte => {
                    if let Some(byte) = byte_of(text) {
                        bytes[usize::from(byte)].get_or_insert(id);
                    }
                }
                TokenType::Normal | TokenType::UserDefined | TokenType::Unused => {
                    // -0.0 and 0.0 are one score.
                    pieces
                        .entry(text.as_str().into())
                        .or_insert((id, score + 0.0));
                }
            }
        }
        Ok(SentencePiece {
            pieces,
            bytes,
            unknown: vocabulary.unk_id,
        })
    }

    /// Appends the ids of `text`, in which spaces are marks already.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<()> {
        let mut symbols = symbols_of(text)?;
        let mut queue = BinaryHeap::with_capacity(symbols.len());
        for right in 1..symbols.len() as u32 {
            self.offer(text, &symbols, right - 1, right, &mut queue);
        }
        while let Some(candidate) = queue.pop() {
            let (left, right) = (
                symbols[candidate.left as usize],
                symbols[candidate.right as usize],
            );
            if left.bytes == 0 || right.bytes == 0 || left.bytes + right.bytes != candidate.bytes {
                continue;
            }
            symbols[candidate.right as usize].bytes = 0;
            let merged = &mut symbols[candidate.left as usize];
            merged.bytes = candidate.bytes;
            merged.next = right.next;
            if right.next != NONE {
                symbols[right.next as usize].previous = candidate.left;
            }
            self.offer(text, &symbols, left.previous, candidate.left, &mut queue);
            self.offer(text, &symbols, candidate.left, right.next, &mut queue);
        }
        for symbol in symbols.iter().filter(|symbol| symbol.bytes != 0) {
            self.emit(slice_of(text, symbol), out);
        }
        Ok(())
    }

    /// Puts the pair in the queue if there is a token for both together.
    fn offer(
        &self,
        text: &str,
        symbols: &[Symbol],
        left: u32,
        right: u32,
        queue: &mut BinaryHeap<Candidate>,
    ) {
        if left == NONE || right == NONE {
            return;
        }
        let (a, b) = (symbols[left as usize], symbols[right as usize]);
        let bytes = a.bytes + b.bytes;
        let both = &text[a.begin as usize..(a.begin + bytes) as usize];
        if let Some(&(_, score)) = self.pieces.get(both) {
            queue.push(Candidate {
                score,
                left,
                right,
                bytes,
            });
        }
    }

    /// Appends the token of `text`, or its bytes, or the unknown token.
    fn emit(&self, text: &str, out: &mut Vec<u32>) {
        if let Some(&(id, _)) = self.pieces.get(text) {
            out.push(id);
            return;
        }
        let begin = out.len();
        for byte in text.bytes() {
            match self.bytes[usize::from(byte)] {
                Some(id) => out.push(id),
                None => {
                    out.truncate(begin);
                    out.extend(self.unknown);
                    return;
                }
            }
        }
    }
}

/// One symbol a character, linked in order.
fn symbols_of(text: &str) -> Result<Vec<Symbol>> {
    if u32::try_from(text.len()).is_err() {
        return Err(Error::new(
            ErrorKind::LimitExceeded,
            format!(
                "{} bytes of text in one piece, at most {} are accepted",
                text.len(),
                u32::MAX
            ),
        ));
    }
    let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
    for (begin, c) in text.char_indices() {
        let index = symbols.len() as u32;
        symbols.push(Symbol {
            begin: begin as u32,
            bytes: c.len_utf8() as u32,
            previous: index.checked_sub(1).unwrap_or(NONE),
            next: index + 1,
        });
    }
    if let Some(last) = symbols.last_mut() {
        last.next = NONE;
    }
    Ok(symbols)
}

fn slice_of<'t>(text: &'t str, symbol: &Symbol) -> &'t str {
    &text[symbol.begin as usize..(symbol.begin + symbol.bytes) as usize]
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
        SentencePiece::new(vocabulary)
            .unwrap()
            .encode(text, &mut ids)
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

        assert!(SentencePiece::new(&vocabulary).is_err());
    }
}
