//! The embedding of a prompt, from the hidden states of its rows.

use super::request::Pooling;
use crate::llm::step::HiddenState;
use crate::scheduler::Row;

/// What a request for an embedding has so far.
pub(super) struct Pooled {
    pooling: Pooling,
    prompt_tokens: u32,
    values: Vec<f32>, // (embedding length) once there is one
}

impl Pooled {
    pub fn new(pooling: Pooling, prompt_tokens: u32) -> Self {
        Self {
            pooling,
            prompt_tokens,
            values: Vec::new(),
        }
    }

    /// What this row of the prompt has to return.
    pub fn wanted(&self, row: &Row) -> Option<HiddenState> {
        match self.pooling {
            Pooling::Mean => Some(HiddenState::Sum),
            Pooling::First if row.first_position == 0 => Some(HiddenState::First),
            Pooling::Last if row.first_position + row.token_count == self.prompt_tokens => {
                Some(HiddenState::Last)
            }
            _ => None,
        }
    }

    /// Takes the hidden state of a row. A prompt that lost its sequence is computed again from its first
    /// position, in rows that may end elsewhere.
    pub fn take(&mut self, first_position: u32, state: &[f32]) {
        if self.pooling != Pooling::Mean || first_position == 0 {
            self.values.clear();
        }
        self.values.resize(state.len(), 0.0);
        for (sum, value) in self.values.iter_mut().zip(state) {
            *sum += value;
        }
    }

    /// The embedding; None if a value is not finite.
    pub fn finish(mut self) -> Option<Vec<f32>> {
        if self.pooling == Pooling::Mean {
            let count = self.prompt_tokens as f32;
            self.values.iter_mut().for_each(|sum| *sum /= count);
        }
        let is_finite = self.values.iter().all(|value| value.is_finite());
        is_finite.then_some(self.values)
    }
}
