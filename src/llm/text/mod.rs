//! Text for models: tokenizing, detokenizing and chat templates. Feature `text`.
//!
//! Everything is built from the metadata of a GGUF file, as a [`Vocabulary`]; a file with only a vocabulary
//! is enough. The module uses no device and no `unsafe`. Files are not trusted: invalid data is an
//! [`Error`](crate::Error).
//!
//! * [`Tokenizer`]: text to ids and back.
//! * [`Detokenizer`]: a stream of ids to a stream of whole characters.
//! * [`ChatTemplate`]: renders a conversation as the text that the model was trained on.
#![forbid(unsafe_code)]

mod byte_level;
mod character_bpe;
mod charsmap;
mod detokenizer;
mod from_gguf;
mod merge;
mod pretokenizer;
mod sentence_piece;
mod special;
mod template;
mod tokenizer;
mod unigram;
mod vocabulary;
mod word_piece;

pub use detokenizer::{DecodeOptions, Detokenizer};
pub use pretokenizer::pre_tokenizer_names;
pub use template::{
    ChatTemplate, Clock, MAX_TEMPLATE_BYTES, RenderOptions, TemplateInput, TemplateLimits,
};
pub use tokenizer::{EncodeOptions, MAX_TEXT_BYTES, Tokenizer};
pub use vocabulary::{MAX_TOKEN_BYTES, MAX_TOKENS, NamedTemplate, TokenType, Vocabulary};
