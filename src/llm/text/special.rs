//! Finds special tokens in text, before any other splitting.

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use super::vocabulary::{TokenType, Vocabulary};
use crate::core::error::{Error, ErrorKind, Result};

/// Most bytes that the texts of all special tokens may have together.
const SPECIAL_BYTES_MAX: usize = 1 << 22;

/// A stretch of text: plain, or one special token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fragment<'t> {
    Text(&'t str),
    Token(u32),
}

/// Finds the longest special token that starts leftmost, then continues after it.
pub(crate) struct SpecialTokens {
    /// What is found when the caller does not trust the text: user-defined tokens, which are text.
    untrusted: Option<Finder>,
    /// What is found when the caller trusts it: those, control tokens and the unknown token.
    trusted: Option<Finder>,
    /// User-defined tokens in text whose spaces are marks.
    marked: Option<Finder>,
}

struct Finder {
    automaton: AhoCorasick,
    ids: Vec<u32>,
}

impl SpecialTokens {
    /// Builds the tables. Where a tokenizer `marks_spaces`, user-defined tokens are left to
    /// [`split_user_defined`](Self::split_user_defined).
    pub(crate) fn new(
        vocabulary: &Vocabulary,
        types: &[TokenType],
        marks_spaces: bool,
    ) -> Result<Self> {
        let tokens = |wanted: &[TokenType], is_marked: bool| {
            (0u32..)
                .zip(types.iter().zip(&vocabulary.tokens))
                .filter(|(_, (token_type, _))| wanted.contains(token_type))
                .map(|(id, (_, text))| match is_marked {
                    true => (id, text.replace(' ', "\u{2581}")),
                    false => (id, text.clone()),
                })
                .collect::<Vec<(u32, String)>>()
        };
        let control = [TokenType::Control, TokenType::Unknown];
        let all = [
            TokenType::UserDefined,
            TokenType::Control,
            TokenType::Unknown,
        ];
        let user_defined = [TokenType::UserDefined];
        Ok(match marks_spaces {
            true => SpecialTokens {
                untrusted: None,
                trusted: Finder::new(&tokens(&control, false))?,
                marked: Finder::new(&tokens(&user_defined, true))?,
            },
            false => SpecialTokens {
                untrusted: Finder::new(&tokens(&user_defined, false))?,
                trusted: Finder::new(&tokens(&all, false))?,
                marked: None,
            },
        })
    }

    /// Cuts `text` at special tokens; no fragment is empty.
    pub(crate) fn split<'t>(&self, text: &'t str, parse_special: bool) -> Vec<Fragment<'t>> {
        match parse_special {
            true => split(&self.trusted, text),
            false => split(&self.untrusted, text),
        }
    }

    /// Cuts `text`, whose spaces are marks, at user-defined tokens; no fragment is empty.
    pub(crate) fn split_user_defined<'t>(&self, text: &'t str) -> Vec<Fragment<'t>> {
        split(&self.marked, text)
    }
}

fn split<'t>(finder: &Option<Finder>, text: &'t str) -> Vec<Fragment<'t>> {
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

impl Finder {
    /// `None` when there is nothing to find.
    fn new(tokens: &[(u32, String)]) -> Result<Option<Self>> {
        let tokens = || tokens.iter().filter(|(_, text)| !text.is_empty());
        let ids: Vec<u32> = tokens().map(|(id, _)| *id).collect();
        if ids.is_empty() {
            return Ok(None);
        }
        let bytes: usize = tokens().map(|(_, text)| text.len()).sum();
        if bytes > SPECIAL_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::Malformed,
                format!(
                    "{} special tokens have {bytes} bytes of text, at most {SPECIAL_BYTES_MAX} are accepted",
                    ids.len()
                ),
            ));
        }
        // Left to itself the builder makes a DFA of few patterns, at 2 KiB for each byte of text.
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(tokens().map(|(_, text)| text))
            .map_err(|error| {
                Error::new(ErrorKind::Malformed, format!("special tokens: {error}"))
            })?;
        Ok(Some(Finder { automaton, ids }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_automaton_takes_a_few_bytes_for_each_byte_of_text() {
        // Few long tokens that share no beginning.
        let text_of = |id: u32| {
            let mut state = id + 1;
            let letters = std::iter::repeat_with(move || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                char::from(b'a' + (state >> 24) as u8 % 26)
            });
            letters.take(1 << 14).collect::<String>()
        };
        let tokens: Vec<(u32, String)> = (0..96).map(|id| (id, text_of(id))).collect();

        let finder = Finder::new(&tokens).unwrap().unwrap();

        let text_bytes = 96 << 14;
        let taken = finder.automaton.memory_usage();
        assert!(taken < 32 * text_bytes, "{taken} bytes for {text_bytes}");
        assert_eq!(split(&Some(finder), &tokens[7].1), [Fragment::Token(7)]);
    }

    #[test]
    fn too_much_text_is_refused() {
        let long = vec![(0, "x".repeat(SPECIAL_BYTES_MAX + 1))];

        assert!(Finder::new(&long).is_err());
    }
}
