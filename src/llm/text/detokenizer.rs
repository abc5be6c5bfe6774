//! Token ids to text, one at a time; only complete characters are returned.
//!
//! A character may be spread over several tokens, so the bytes of an unfinished one wait for the next
//! token. Invalid bytes become U+FFFD, one per maximal prefix of a character, as in
//! [`String::from_utf8_lossy`].

use std::sync::Arc;

use super::tokenizer::Tokenizer;
use crate::core::error::{Error, ErrorKind, Result};

/// How ids become text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Write control and unknown tokens out instead of leaving them away.
    pub show_special: bool,
    /// The first token begins a text. SentencePiece put a space before it, which is taken away again.
    /// Leave it off for what a model adds to a prompt.
    pub at_text_start: bool,
}

/// Turns a stream of token ids into text.
///
/// What [`push`](Self::push) appends is always whole characters, and the concatenation of all of it,
/// with [`finish`](Self::finish), is what [`Tokenizer::decode`] gives for all ids at once.
///
/// ```no_run
/// # fn main() -> worker_cuda::Result<()> {
/// # use std::sync::Arc;
/// # use worker_cuda::{Gguf, text::{DecodeOptions, Detokenizer, Tokenizer}};
/// let tokenizer = Arc::new(Tokenizer::from_gguf(&Gguf::open("model.gguf")?)?);
/// let mut detokenizer = Detokenizer::new(tokenizer, DecodeOptions::default());
/// let mut text = String::new();
/// for id in [15496, 995] {
///     detokenizer.push(id, &mut text)?;
/// }
/// detokenizer.finish(&mut text);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    decoder: Decoder,
}

impl Detokenizer {
    /// A detokenizer that has seen nothing yet.
    pub fn new(tokenizer: Arc<Tokenizer>, options: DecodeOptions) -> Self {
        let decoder = Decoder::new(&tokenizer, options);
        Detokenizer { tokenizer, decoder }
    }

    /// Appends to `text` what is certain after token `id`: nothing, or whole characters. An id past
    /// the vocabulary is an error and changes nothing.
    pub fn push(&mut self, id: u32, text: &mut String) -> Result<()> {
        self.decoder.push(&self.tokenizer, id, text)
    }

    /// Appends what was still waiting, as one U+FFFD, because nothing will complete it. The
    /// detokenizer is then where it was after [`new`](Self::new), but inside a text.
    pub fn finish(&mut self, text: &mut String) {
        self.decoder.finish(text);
    }

    /// Bytes that wait for the rest of their character; at most 3.
    pub fn pending_bytes(&self) -> usize {
        self.decoder.pending.len()
    }
}

/// The state of a [`Detokenizer`], without its tokenizer.
#[derive(Clone, Debug)]
pub(crate) struct Decoder {
    show_special: bool,
    strip_space: bool,
    /// The beginning of a character, never a whole one.
    pending: Vec<u8>,
}

impl Decoder {
    pub(crate) fn new(tokenizer: &Tokenizer, options: DecodeOptions) -> Self {
        Decoder {
            show_special: options.show_special,
            strip_space: options.at_text_start && tokenizer.adds_space_prefix(),
            pending: Vec::with_capacity(8),
        }
    }

    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, id: u32, text: &mut String) -> Result<()> {
        let Some(mut bytes) = tokenizer.token_bytes(id) else {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                format!(
                    "token id {id} is past the vocabulary of {} tokens",
                    tokenizer.token_count()
                ),
            ));
        };
        if tokenizer.is_special(id) {
            if !self.show_special {
                return Ok(());
            }
        } else if !bytes.is_empty() {
            if self.strip_space {
                bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            }
            self.strip_space = false;
        }
        if self.pending.is_empty() {
            self.append(bytes, text);
        } else {
            let mut joined = std::mem::take(&mut self.pending);
            joined.extend_from_slice(bytes);
            self.append(&joined, text);
        }
        Ok(())
    }

    pub(crate) fn finish(&mut self, text: &mut String) {
        if !self.pending.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
            self.pending.clear();
        }
        self.strip_space = false;
    }

    /// Appends the whole characters of `bytes` and keeps an unfinished one; nothing is pending before.
    fn append(&mut self, mut bytes: &[u8], text: &mut String) {
        loop {
            match std::str::from_utf8(bytes) {
                Ok(valid) => {
                    text.push_str(valid);
                    return;
                }
                Err(error) => {
                    let (valid, rest) = bytes.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(invalid) = error.error_len() else {
                        self.pending.extend_from_slice(rest);
                        return;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    bytes = &rest[invalid..];
                }
            }
        }
    }
}
