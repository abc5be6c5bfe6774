//! WordPiece as BERT has it: words at white space and punctuation, each cut greedily into the longest
//! tokens from its beginning.
//!
//! In a GGUF file a token that begins a word begins with U+2581, and one that continues a word is
//! written plainly, without the "##" of BERT's own files.

use std::collections::HashMap;

use fancy_regex::Regex;
use unicode_normalization::UnicodeNormalization as _;

use super::sentence_piece::SPACE_MARK;
use super::vocabulary::{TokenType, Vocabulary};
use crate::core::error::{Error, ErrorKind, Result};

/// Characters of a longer word become one unknown token.
const WORD_CHARS_MAX: usize = 100;

/// A WordPiece tokenizer for text without special tokens.
pub(crate) struct WordPiece {
    /// Tokens that begin a word, without the mark.
    first: HashMap<Box<str>, u32>,
    /// Tokens that continue one.
    rest: HashMap<Box<str>, u32>,
    unknown: Option<u32>,
    lowercase: bool,
    strip_accents: bool,
    /// Characters that are dropped.
    control: Regex,
    /// Characters that are words of their own.
    punctuation: Regex,
    accent: Regex,
}

impl WordPiece {
    /// Builds the tables. Control and unknown tokens, by `types`, never come from text.
    pub(crate) fn new(vocabulary: &Vocabulary, types: &[TokenType]) -> Result<Self> {
        let (mut first, mut rest) = (HashMap::new(), HashMap::new());
        for (id, (text, token_type)) in (0u32..).zip(vocabulary.tokens.iter().zip(types)) {
            if matches!(token_type, TokenType::Control | TokenType::Unknown) {
                continue;
            }
            match text.strip_prefix(SPACE_MARK) {
                Some(word) => first.entry(word.into()).or_insert(id),
                None => rest.entry(text.as_str().into()).or_insert(id),
            };
        }
        let lowercase = vocabulary.normalizer_lowercase.unwrap_or(true);
        Ok(WordPiece {
            first,
            rest,
            unknown: vocabulary.unk_id.or_else(|| vocabulary.id_of("[UNK]")),
            lowercase,
            strip_accents: vocabulary.normalizer_strip_accents.unwrap_or(lowercase),
            control: class(r"[\p{Cc}\p{Cf}\p{Co}\x{fffd}&&[^\t\n\r]]+")?,
            punctuation: class(r"\p{P}|[$+<=>^`|~]")?,
            accent: class(r"\p{Mn}+")?,
        })
    }

    /// Appends the ids of `text`.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<()> {
        let normalized = self.normalize(text);
        for word in normalized.split(char::is_whitespace) {
            let mut begin = 0;
            for mark in self.punctuation.find_iter(word) {
                let mark = mark.map_err(|error| failed(&error))?;
                self.push_word(&word[begin..mark.start()], out);
                self.push_word(mark.as_str(), out);
                begin = mark.end();
            }
            self.push_word(&word[begin..], out);
        }
        Ok(())
    }

    /// The text without control characters, with spaces around Chinese characters, and, where the
    /// vocabulary asks for it, without accents and in lower case.
    fn normalize(&self, text: &str) -> String {
        let text = self.control.replace_all(text, "");
        let mut spaced = String::with_capacity(text.len());
        for c in text.chars() {
            match is_chinese(c) {
                true => spaced.extend([' ', c, ' ']),
                false => spaced.push(c),
            }
        }
        if self.strip_accents {
            let decomposed: String = spaced.nfd().collect();
            spaced = self.accent.replace_all(&decomposed, "").into_owned();
        }
        match self.lowercase {
            true => spaced.chars().flat_map(char::to_lowercase).collect(),
            false => spaced,
        }
    }

    /// Appends the tokens of one word, or the unknown token if some part of it is no token.
    fn push_word(&self, word: &str, out: &mut Vec<u32>) {
        if word.is_empty() {
            return;
        }
        let begin = out.len();
        let is_long = word.chars().nth(WORD_CHARS_MAX).is_some();
        let mut left = if is_long { "" } else { word };
        while !left.is_empty() {
            let tokens = match left.len() == word.len() {
                true => &self.first,
                false => &self.rest,
            };
            let ends = left.char_indices().map(|(at, c)| at + c.len_utf8()).rev();
            let Some((id, end)) = ends
                .filter_map(|end| tokens.get(&left[..end]).map(|&id| (id, end)))
                .next()
            else {
                break;
            };
            out.push(id);
            left = &left[end..];
        }
        if is_long || !left.is_empty() {
            out.truncate(begin);
            out.extend(self.unknown);
        }
    }
}

fn class(pattern: &str) -> Result<Regex> {
    Regex::new(pattern).map_err(|error| failed(&error))
}

fn failed(error: &fancy_regex::Error) -> Error {
    let message = format!("a character class does not work: {error}");
    Error::new(ErrorKind::Internal, message)
}

/// The blocks that BERT calls Chinese characters.
fn is_chinese(c: char) -> bool {
    matches!(c, '\u{4e00}'..='\u{9fff}' | '\u{3400}'..='\u{4dbf}' | '\u{20000}'..='\u{2a6df}'
        | '\u{2a700}'..='\u{2b73f}' | '\u{2b740}'..='\u{2b81f}' | '\u{2b920}'..='\u{2ceaf}'
        | '\u{f900}'..='\u{faff}' | '\u{2f800}'..='\u{2fa1f}')
}

/// What a token adds to a text: a word has a space before it, except where English has none.
pub(crate) fn decoded(text: &str) -> String {
    let text = match text.strip_prefix(SPACE_MARK) {
        Some(word) => format!(" {word}"),
        None => text.to_owned(),
    };
    let tidy = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" do not", " don't"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    tidy.iter()
        .fold(text, |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_more_than_a_hundred_characters_is_unknown() {
        let vocabulary = Vocabulary {
            tokens: vec!["[UNK]".into(), "\u{2581}é".into(), "é".into()],
            normalizer_strip_accents: Some(false),
            ..Vocabulary::default()
        };
        let types = [TokenType::Unknown, TokenType::Normal, TokenType::Normal];
        let tokenizer = WordPiece::new(&vocabulary, &types).unwrap();
        let encode = |count| {
            let mut ids = Vec::new();
            tokenizer.encode(&"é".repeat(count), &mut ids).unwrap();
            ids
        };

        assert_eq!(encode(100), [&[1][..], &[2; 99]].concat());
        assert_eq!(encode(101), [0]);
    }
}
