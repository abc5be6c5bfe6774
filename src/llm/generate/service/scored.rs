//! Log probabilities of a prompt's tokens, from the rows that compute it.

use std::sync::Arc;

use super::engine::{ScoredRow, StepResults};
use super::event::PromptLogprob;
use crate::llm::engine::Token;
use crate::scheduler::Row;

/// What a request that wants them has so far.
pub(super) struct Scored {
    prompt: Arc<[Token]>,
    top: u32,
    /// (tokens of the prompt but the first)
    scores: Vec<Option<PromptLogprob>>,
    /// Of these, how many are not known yet.
    missing: usize,
}

impl Scored {
    /// `prompt` has at least one token.
    pub fn new(prompt: &[Token], top: u32) -> Self {
        let missing = prompt.len() - 1;
        Self {
            prompt: prompt.into(),
            top,
            scores: vec![None; missing],
            missing,
        }
    }

    /// What this row has to return: the next tokens of the prompt, given its own.
    pub fn wanted(&self, row: &Row) -> Option<ScoredRow> {
        let last = self.prompt.len() as u32 - 1;
        let end = row.first_position + row.token_count;
        (!self.scores.is_empty() && row.first_position < last).then(|| ScoredRow {
            top: self.top,
            next: self.prompt.get(end as usize).copied(),
        })
    }

    /// Takes what row `index` of the results returned. Rows of a prompt that lost its sequence return the same again,
    /// and the tokens that were generated since.
    pub fn take(&mut self, results: &StepResults, index: usize) {
        let row = &results.scored_rows[index];
        let tokens = self.prompt.iter().skip(1).zip(&mut self.scores);
        let places = tokens.skip(row.first_position as usize);
        for ((&token, place), (logprob, top)) in places.zip(results.scores(index)) {
            self.missing -= usize::from(place.is_none());
            let top = top.to_vec();
            *place = Some(PromptLogprob {
                token,
                logprob,
                top,
            });
        }
    }

    /// All of them; None until they are complete, and after they were taken.
    pub fn finish(&mut self) -> Option<Vec<PromptLogprob>> {
        if self.missing > 0 {
            return None;
        }
        self.missing = usize::MAX;
        Some(self.scores.drain(..).flatten().collect())
    }
}
