//! Drafts: guesses of the next tokens of a sequence, which a step verifies all at once.

use std::collections::HashMap;

use crate::llm::engine::{Token, TokenFeatures};
use crate::llm::step::Sampling;

/// A source of drafts. Its guesses change the speed of a generation, never its tokens.
pub trait Draft: Send {
    /// A generation begins. `prompt` is never empty. `prediction` is a text that the answer may repeat as a whole or in
    /// parts; often it is empty.
    fn begin(&mut self, prompt: &[Token], prediction: &[Token]);

    /// How the tokens of the generation are sampled; called after [`begin`](Self::begin). The token of a position is drawn
    /// by a number that depends on the seed and the position alone. A source that computes probabilities can draw its
    /// guesses by the same numbers: more of them hold than of the most probable tokens.
    fn sample_like(&mut self, sampling: &Sampling) {
        let _ = sampling;
    }

    /// Appends at most `limit` guesses of the tokens that follow `tokens` to `drafts`, which is empty. `tokens` are the
    /// prompt and all sampled tokens. Within a generation they only grow. Guesses past `limit`, and those from the first one
    /// on that is not in the model's vocabulary, are ignored.
    fn draft(&mut self, tokens: &[Token], limit: usize, drafts: &mut Vec<Token>);

    /// Whether guesses are computed, and not looked up: there are as many as are wanted at any place, and each takes
    /// time. [`draft`](Self::draft) is then called only where guesses are worth their time, and now and then for one
    /// more.
    fn is_computed(&self) -> bool {
        false
    }

    /// The sequence that has computed all but the last of the tokens of the next calls, before each of them; None if
    /// there is none. A [draft head](super::ModelDraft::head) reads its features.
    fn follow(&mut self, features: Option<TokenFeatures>) {
        let _ = features;
    }

    /// Announces the next call of [`draft`](Self::draft), which has the same arguments. It is called for all texts of
    /// which guesses are wanted before any is drafted, so that sources can compute on one engine at once.
    fn prepare(&mut self, tokens: &[Token], limit: usize) {
        let _ = (tokens, limit);
    }
}

/// Prompt lookup: finds the last tokens earlier in the sequence, or in the prediction, and guesses that the same tokens
/// follow. Fast where text repeats, as in edits of code, extractions and quotations.
///
/// ```
/// use worker_cuda::generate::{Draft, NgramDraft};
///
/// let mut drafts = Vec::new();
/// let mut draft = NgramDraft::new();
/// draft.begin(&[1, 2, 3, 4, 5, 9], &[]);
/// draft.draft(&[1, 2, 3, 4, 5, 9, 2, 3], 3, &mut drafts);
/// assert_eq!(drafts, [4, 5, 9]);
/// ```
#[derive(Debug, Default)]
pub struct NgramDraft {
    /// The end of the prompt, then the prediction: as if the text had continued with it before.
    predicted: Vec<Token>,
    // Indices count the predicted tokens first, then those of the sequence.
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
        let all = Joined(&self.predicted, tokens);
        for end in self.earlier.len()..all.len() {
            let pair = end.checked_sub(1).map(|start| [all.at(start), all.at(end)]);
            self.earlier
                .push(pair.and_then(|pair| self.newest.insert(pair, end)));
        }
    }
}

/// Two lists as one.
struct Joined<'a>(&'a [Token], &'a [Token]);

impl Joined<'_> {
    fn len(&self) -> usize {
        self.0.len() + self.1.len()
    }

    fn at(&self, index: usize) -> Token {
        match index.checked_sub(self.0.len()) {
            Some(index) => self.1[index],
            None => self.0[index],
        }
    }
}

impl Draft for NgramDraft {
    fn begin(&mut self, prompt: &[Token], prediction: &[Token]) {
        self.newest.clear();
        self.earlier.clear();
        self.predicted.clear();
        if !prediction.is_empty() {
            let end = prompt.len().saturating_sub(LONGEST_MATCH);
            self.predicted.extend_from_slice(&prompt[end..]);
            self.predicted.extend_from_slice(prediction);
        }
        self.index(prompt);
    }

    fn draft(&mut self, tokens: &[Token], limit: usize, drafts: &mut Vec<Token>) {
        self.index(tokens);
        let all = Joined(&self.predicted, tokens);
        let Some(last) = all.len().checked_sub(1) else {
            return;
        };
        let places = std::iter::successors(self.earlier[last], |&place| self.earlier[place]);
        let matched = |place: usize| {
            (0..=place)
                .take(LONGEST_MATCH)
                .take_while(|back| all.at(place - back) == all.at(last - back))
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
        let is_predicted = place < self.predicted.len();
        for index in place + 1..place + 1 + limit {
            if is_predicted && index == self.predicted.len() {
                return;
            }
            // Past the end, the guess repeats itself.
            let token = match index.checked_sub(all.len()) {
                Some(past) => drafts[past],
                None => all.at(index),
            };
            drafts.push(token);
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
        grown.begin(&[1, 2, 3], &[]);
        let mut drafts = Vec::new();
        grown.draft(&[1, 2, 3, 1, 2], 2, &mut drafts);
        assert_eq!(drafts, [3, 1]);
    }

    #[test]
    fn a_prediction_follows_the_prompt_and_is_found_again_after_other_text() {
        let mut draft = NgramDraft::new();
        let mut text = vec![1, 2, 3];
        let mut guess = |text: &[Token]| {
            let mut drafts = Vec::new();
            draft.draft(text, 4, &mut drafts);
            drafts
        };
        assert!(guess(&text).is_empty());
        draft.begin(&text, &[5, 6, 7, 8, 9]);
        let mut guess = |text: &[Token]| {
            let mut drafts = Vec::new();
            draft.draft(text, 4, &mut drafts);
            drafts
        };
        assert_eq!(guess(&text), [5, 6, 7, 8]);
        text.push(5);
        assert_eq!(guess(&text), [6, 7, 8, 9]);
        text.extend([50, 51]);
        assert!(guess(&text).is_empty());
        text.extend([6, 7]);
        assert_eq!(guess(&text), [8, 9], "no more than the prediction has");
        // The sequence's own text is more recent.
        text.extend([60, 6, 7]);
        assert_eq!(guess(&text), [60, 6, 7, 60]);
    }
}
