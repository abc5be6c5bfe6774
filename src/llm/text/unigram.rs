//! Unigram as SentencePiece has it: text is normalized, then cut into the tokens whose scores add up to
//! the most.

use super::charsmap::Charsmap;
use super::sentence_piece::{SPACE_MARK, byte_tokens, push_bytes};
use super::vocabulary::{TokenType, Vocabulary};
use crate::core::error::{Error, ErrorKind, Result};

/// Longest token, in bytes: cutting takes as many steps for each character at most. The longest
/// published ones have about 50.
const TOKEN_BYTES_MAX: usize = 512;
/// What a character without a token scores less than the worst token.
const UNKNOWN_PENALTY: f32 = 10.0;

/// A Unigram tokenizer for text without special tokens.
pub(crate) struct Unigram {
    charsmap: Charsmap,
    /// (text, id, score) of the tokens that text can become, sorted by text.
    pieces: Vec<(Box<[u8]>, u32, f32)>,
    /// Texts of user-defined tokens, sorted: they are not normalized.
    user_defined: Vec<Box<[u8]>>,
    unknown: Option<u32>,
    unknown_score: f32,
    bytes: [Option<u32>; 256],
    has_bytes: bool,
    add_space_prefix: bool,
    remove_extra_spaces: bool,
}

/// The best way to a position of the text: the score of all of it, and its last token.
#[derive(Clone, Copy)]
struct Node {
    score: f32,
    begin: u32,
    /// None for a character without a token.
    id: Option<u32>,
}

impl Unigram {
    /// Builds the tables. Control, unknown, unused and byte tokens, by `types`, are not what text
    /// becomes, except bytes of characters without a token.
    pub(crate) fn new(vocabulary: &Vocabulary, types: &[TokenType]) -> Result<Self> {
        if vocabulary.scores.is_empty() {
            return Err(Error::new(
                ErrorKind::Malformed,
                "a Unigram vocabulary needs tokenizer.ggml.scores",
            ));
        }
        let tokens = || vocabulary.tokens.iter().zip(&vocabulary.scores).zip(types);
        let scores = tokens().filter(|(_, token_type)| **token_type == TokenType::Normal);
        let (worst, best) = scores.fold(
            // SentencePiece begins at the smallest positive number, so the best is at least that.
            (f32::INFINITY, f32::MIN_POSITIVE),
            |(worst, best), ((_, &score), _)| (worst.min(score), best.max(score)),
        );
        let mut pieces = Vec::with_capacity(vocabulary.tokens.len());
        let mut user_defined: Vec<Box<[u8]>> = Vec::new();
        for (id, ((text, &score), token_type)) in (0u32..).zip(tokens()) {
            if !matches!(token_type, TokenType::Normal | TokenType::UserDefined) || text.is_empty()
            {
                continue;
            }
            if text.len() > TOKEN_BYTES_MAX {
                return Err(Error::new(
                    ErrorKind::Malformed,
                    format!(
                        "token {id} is {} bytes long, at most {TOKEN_BYTES_MAX} are accepted in a Unigram vocabulary",
                        text.len()
                    ),
                ));
            }
            // Files write a user-defined token with plain spaces.
            let marked = text
                .replace(' ', "\u{2581}")
                .into_bytes()
                .into_boxed_slice();
            let score = match token_type {
                TokenType::UserDefined => {
                    user_defined.push(text.replace(SPACE_MARK, " ").into_bytes().into());
                    (f64::from(marked.len() as f32 * best) - 0.1) as f32
                }
                _ => score,
            };
            pieces.push((marked, id, score));
        }
        pieces.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.cmp(&b.1)));
        pieces.dedup_by(|later, first| later.0 == first.0);
        user_defined.sort();
        let bytes = byte_tokens(vocabulary, types);
        Ok(Unigram {
            charsmap: Charsmap::new(&vocabulary.precompiled_charsmap)?,
            pieces,
            user_defined,
            unknown: vocabulary.unk_id,
            unknown_score: if worst.is_finite() { worst } else { 0.0 } - UNKNOWN_PENALTY,
            has_bytes: bytes.iter().all(Option::is_some),
            bytes,
            add_space_prefix: vocabulary.add_space_prefix.unwrap_or(true),
            remove_extra_spaces: vocabulary.remove_extra_whitespaces.unwrap_or(true),
        })
    }

    /// Appends the ids of `text`.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<()> {
        let text = self.normalize(text);
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
        let nodes = self.best_ways(&text);
        let mut tokens = Vec::new();
        let mut end = text.len();
        while end > 0 {
            let Some(node) = nodes[end] else { break };
            let begin = node.begin as usize;
            tokens.push((begin..end, node.id));
            end = begin;
        }
        let mut after_unknown = false;
        for (range, id) in tokens.into_iter().rev() {
            match id {
                Some(id) => out.push(id),
                None if self.has_bytes => {
                    push_bytes(&text[range], &self.bytes, out);
                }
                // Neighbours without a token are one unknown token.
                None if after_unknown => {}
                None => out.extend(self.unknown),
            }
            after_unknown = id.is_none();
        }
        Ok(())
    }

    /// For each end of a character, the best way to it.
    fn best_ways(&self, text: &str) -> Vec<Option<Node>> {
        let bytes = text.as_bytes();
        let mut nodes: Vec<Option<Node>> = vec![None; bytes.len() + 1];
        for (begin, c) in text.char_indices() {
            let so_far = match nodes[begin] {
                Some(node) => node.score,
                None if begin == 0 => 0.0,
                None => continue,
            };
            let mut offer = |end: usize, id: Option<u32>, score: f32| {
                let score = score + so_far;
                if nodes[end].is_none_or(|node| score > node.score) {
                    nodes[end] = Some(Node {
                        score,
                        begin: begin as u32,
                        id,
                    });
                }
            };
            let character_end = begin + c.len_utf8();
            let mut has_character = false;
            let (mut low, mut high) = (0, self.pieces.len());
            for (depth, &byte) in bytes[begin..].iter().enumerate() {
                // The pieces that begin with what was read so far are between `low` and `high`.
                let range = &self.pieces[low..high];
                let at = |piece: &(Box<[u8]>, u32, f32)| piece.0.get(depth).copied();
                let from = range.partition_point(|piece| at(piece) < Some(byte));
                let to = range.partition_point(|piece| at(piece) <= Some(byte));
                (low, high) = (low + from, low + to);
                let Some((piece, id, score)) = self.pieces[low..high].first() else {
                    break;
                };
                let end = begin + depth + 1;
                if piece.len() == depth + 1 && text.is_char_boundary(end) {
                    offer(end, Some(*id), *score);
                    has_character |= end == character_end;
                }
            }
            if !has_character {
                offer(character_end, None, self.unknown_score);
            }
        }
        nodes
    }

    /// The text with characters replaced, spaces as marks, and extra ones taken out.
    fn normalize(&self, text: &str) -> String {
        let mut rest = text;
        let mut out = String::with_capacity(text.len() + text.len() / 4 + 4);
        if self.remove_extra_spaces {
            while let Some((" ", bytes)) = self.next_piece(rest) {
                rest = &rest[bytes..];
            }
        }
        if rest.is_empty() {
            return out;
        }
        if self.add_space_prefix {
            out.push(SPACE_MARK);
        }
        let mut after_space = self.remove_extra_spaces;
        while let Some((piece, bytes)) = self.next_piece(rest) {
            let kept = match after_space {
                true => piece.trim_start_matches(' '),
                false => piece,
            };
            out.extend(kept.chars().map(|c| if c == ' ' { SPACE_MARK } else { c }));
            if !kept.is_empty() {
                after_space = kept.ends_with(' ');
            }
            after_space &= self.remove_extra_spaces;
            rest = &rest[bytes..];
        }
        if self.remove_extra_spaces {
            out.truncate(out.trim_end_matches(SPACE_MARK).len());
        }
        out
    }

    /// What the beginning of `text` becomes, and how many bytes of it.
    fn next_piece<'t>(&'t self, text: &'t str) -> Option<(&'t str, usize)> {
        let first = text.chars().next()?;
        if let Some(bytes) = self.user_defined_at(text) {
            return Some((&text[..bytes], bytes));
        }
        if let Some((bytes, replacement)) = self.charsmap.longest(text) {
            return Some((replacement, bytes));
        }
        let bytes = first.len_utf8();
        Some((&text[..bytes], bytes))
    }

    /// The length of the longest user-defined token that `text` begins with.
    fn user_defined_at(&self, text: &str) -> Option<usize> {
        let (mut low, mut high) = (0, self.user_defined.len());
        let mut longest = None;
        for (depth, &byte) in text.as_bytes().iter().enumerate() {
            let range = &self.user_defined[low..high];
            let at = |token: &[u8]| token.get(depth).copied();
            let from = range.partition_point(|token| at(token) < Some(byte));
            let to = range.partition_point(|token| at(token) <= Some(byte));
            (low, high) = (low + from, low + to);
            let Some(token) = self.user_defined[low..high].first() else {
                break;
            };
            if token.len() == depth + 1 {
                longest = Some(depth + 1);
            }
        }
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_accepted_up_to_512_bytes() {
        let of_length = |bytes| {
            let vocabulary = Vocabulary {
                tokens: vec!["x".repeat(bytes)],
                scores: vec![-1.0],
                ..Vocabulary::default()
            };
            Unigram::new(&vocabulary, &[TokenType::Normal]).map(drop)
        };

        assert!(of_length(512).is_ok());
        let message = of_length(513).unwrap_err().to_string();
        assert!(message.contains("513 bytes long"), "{message}");
    }
}
