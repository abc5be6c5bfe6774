//! Finds special tokens in text, before anything else is split.

use aho_corasick::{AhoCorasick, MatchKind};

use super::vocabulary::{TokenType, Vocabulary};
use crate::core::error::{Error, ErrorKind, Result};

/// Most bytes that the texts of all special tokens may have together.
const SPECIAL_BYTES_MAX: usize = 1 << 24;

/// A stretch of text: plain, or one special token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fragment<'t> {
    Text(&'t str),
    Token(u32),
}

/// Finds the longest special token that starts leftmost, then goes on behind it.
pub(crate) struct SpecialTokens {
    /// User-defined tokens: they are text, and always found.
    user_defined: Option<Finder>,
    /// Those, control tokens and the unknown token: found when the caller trusts the text.
    all: Option<Finder>,
}

struct Finder {
    automaton: AhoCorasick,
    ids: Vec<u32>,
}

impl SpecialTokens {
    pub(crate) fn new(vocabulary: &Vocabulary, types: &[TokenType]) -> Result<Self> {
        let of_types = |wanted: &[TokenType]| {
            (0u32..)
                .zip(types)
                .filter(|(_, token_type)| wanted.contains(token_type))
                .map(|(id, _)| id)
                .collect::<Vec<u32>>()
        };
        Ok(SpecialTokens {
            user_defined: Finder::new(vocabulary, of_types(&[TokenType::UserDefined]))?,
            all: Finder::new(
                vocabulary,
                of_types(&[
                    TokenType::UserDefined,
                    TokenType::Control,
                    TokenType::Unknown,
                ]),
            )?,
        })
    }

    /// Cuts `text` at special tokens; no fragment is empty.
    pub(crate) fn split<'t>(&self, text: &'t str, parse_special: bool) -> Vec<Fragment<'t>> {
        let finder = if parse_special {
            &self.all
        } else {
            &self.user_defined
        };
        let mut fragments = Vec::new();
        let mut done = 0;
        if let Some(finder) = finder {
            for found in finder.automaton.find_iter(text) {
                if found.start() > done {
                    fragments.push(Fragment::Text(&text[done..found.start()]));
                }
                fragments.push(Fragment::Token(finder.ids[found.pattern().as_usize()]));
                done = found.end();
            }
        }
        if done < text.len() {
            fragments.push(Fragment::Text(&text[done..]));
        }
        fragments
    }
}

impl Finder {
    /// `None` when there is nothing to find.
    fn new(vocabulary: &Vocabulary, mut ids: Vec<u32>) -> Result<Option<Self>> {
        let text_of = |id: u32| vocabulary.token_text(id).unwrap_or_default();
        ids.retain(|&id| !text_of(id).is_empty());
        if ids.is_empty() {
            return Ok(None);
        }
        let bytes: usize = ids.iter().map(|&id| text_of(id).len()).sum();
        if bytes > SPECIAL_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::Malformed,
                format!(
                    "{} special tokens have {bytes} bytes of text, at most {SPECIAL_BYTES_MAX} are accepted",
                    ids.len()
                ),
            ));
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(ids.iter().map(|&id| text_of(id)))
            .map_err(|error| {
                Error::new(ErrorKind::Malformed, format!("special tokens: {error}"))
            })?;
        Ok(Some(Finder { automaton, ids }))
    }
}
