//! Drafts: guesses of the next tokens of a sequence, which a step verifies all at once.

use std::collections::HashMap;

use crate::llm::engine::Token;

/// A source of drafts. Its guesses change the speed of a generation, never its tokens.
pub trait Draft: Send {
    /// A generation begins; the tokens of the next call need not continue those of the last one.
    fn begin(&mut self);

    /// Appends at most `limit` guesses of the tokens that follow `tokens` to `drafts`, which is empty. `tokens` are the
    /// prompt and all sampled tokens, and never empty. Within a generation they only grow.
    fn draft(&mut self, tokens: &[Token], limit: usize, drafts: &mut Vec<Token>);
}

/// Prompt lookup: finds the last tokens earlier in the sequence and guesses that the same tokens follow. Fast where
/// text repeats, as in edits of code, extractions and quotations.
///
/// ```
/// use worker_cuda::generate::{Draft, NgramDraft};
///
/// let mut drafts = Vec::new();
/// NgramDraft::new().draft(&[1, 2, 3, 4, 5, 9, 2, 3], 3, &mut drafts);
/// assert_eq!(drafts, [4, 5, 9]);
/// ```
#[derive(Debug, Default)]
pub struct NgramDraft {
    /// Index of the second token of the last pair of these two tokens.
    newest: HashMap<[Token; 2], usize>,
    /// For each token the index of the pair before that is equal to the one that ends there.
    earlier: Vec<Option<usize>>,
}

/// Earlier places to compare, the most recent first.
const PLACES: usize = 64;
/// Tokens to compare at each place; the longest match wins, and the most recent one of equal length.
const LONGEST_MATCH: usize = 16;

impl NgramDraft {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    fn index(&mut self, tokens: &[Token]) {
        for end in self.earlier.len()..tokens.len() {
            let pair = end.checked_sub(1).map(|start| [tokens[start], tokens[end]]);
            self.earlier
                .push(pair.and_then(|pair| self.newest.insert(pair, end)));
        }
    }
}

impl Draft for NgramDraft {
    fn begin(&mut self) {
        self.newest.clear();
        self.earlier.clear();
    }

    fn draft(&mut self, tokens: &[Token], limit: usize, drafts: &mut Vec<Token>) {
        self.index(tokens);
        let last = tokens.len() - 1;
        let places = std::iter::successors(self.earlier[last], |&place| self.earlier[place]);
        let matched = |place: usize| {
            let pairs = tokens[..=place].iter().rev().zip(tokens.iter().rev());
            pairs
                .take(LONGEST_MATCH)
                .take_while(|(a, b)| a == b)
                .count()
        };
        let Some(place) = places
            .take(PLACES)
            .enumerate()
            .max_by_key(|&(age, place)| (matched(place), std::cmp::Reverse(age)))
            .map(|(_, place)| place)
        else {
            return;
        };
        // Past the end, the guess repeats itself.
        for index in place + 1..place + 1 + limit {
            let token = tokens.get(index).copied();
            drafts.push(token.unwrap_or_else(|| drafts[index - tokens.len()]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(tokens: &[Token], limit: usize) -> Vec<Token> {
        let mut drafts = Vec::new();
        NgramDraft::new().draft(tokens, limit, &mut drafts);
        drafts
    }

    #[test]
    fn nothing_is_guessed_without_an_earlier_pair() {
        assert!(guess(&[7], 4).is_empty());
        assert!(guess(&[7, 7], 4).is_empty());
        assert!(guess(&[1, 2, 3, 1], 4).is_empty());
        assert!(guess(&[1, 2, 3, 1, 2], 0).is_empty());
    }

    #[test]
    fn the_longest_match_wins_and_then_the_most_recent() {
        assert_eq!(guess(&[9, 1, 2, 5, 8, 1, 2, 6, 9, 1, 2], 1), [5]);
        assert_eq!(guess(&[1, 2, 5, 8, 1, 2, 6, 9, 1, 2], 1), [6]);
    }

    #[test]
    fn a_guess_past_the_end_repeats_itself() {
        assert_eq!(guess(&[1, 2, 3, 1, 2], 7), [3, 1, 2, 3, 1, 2, 3]);
        assert_eq!(guess(&[4, 4, 4], 5), [4, 4, 4, 4, 4]);
    }

    #[test]
    fn growing_tokens_give_the_guess_of_the_whole() {
        let tokens: Vec<Token> = (0..400).map(|i| i * i % 7).collect();
        let mut grown = NgramDraft::new();
        for length in 1..=tokens.len() {
            let mut drafts = Vec::new();
            grown.draft(&tokens[..length], 5, &mut drafts);
            assert_eq!(drafts, guess(&tokens[..length], 5), "{length} tokens");
        }
        grown.begin();
        let mut drafts = Vec::new();
        grown.draft(&[1, 2, 3, 1, 2], 2, &mut drafts);
        assert_eq!(drafts, [3, 1]);
    }
}
