//! Text to token ids and back, by the vocabulary of a model.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use super::byte_level::{ByteLevel, WordCache, char_to_byte};
use super::detokenizer::{DecodeOptions, Decoder};
use super::sentence_piece::{SPACE_MARK, SentencePiece};
use super::special::{Fragment, SpecialTokens};
use super::vocabulary::{TokenType, Vocabulary, byte_of, shortened};
use crate::core::error::{Error, ErrorKind, Result};

/// Longest text that [`Tokenizer::encode`] takes, in bytes.
pub const MAX_TEXT_BYTES: usize = 1 << 28;

/// How [`Tokenizer::encode`] treats markers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Put BOS in front and EOS behind, where the model's metadata say so.
    pub add_special: bool,
    /// Recognise control tokens that are written out in the text, as chat templates do. Leave it off
    /// for text that users typed: it can then not forge a marker.
    pub parse_special: bool,
}

/// A tokenizer: immutable, and usable from any number of threads at once.
///
/// Byte-level BPE (`tokenizer.ggml.model` "gpt2") and SentencePiece BPE ("llama") are supported; other
/// kinds are a [`NotAvailable`](crate::ErrorKind::NotAvailable) error.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    model: Model,
    special: SpecialTokens,
    pieces: Pieces,
    ids: HashMap<Box<str>, u32>,
    types: Vec<TokenType>,
    end_of_generation: BTreeSet<u32>,
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
}

enum Model {
    ByteLevel(Box<ByteLevel>),
    SentencePiece(Box<SentencePiece>),
}

impl Tokenizer {
    /// Checks `vocabulary` and builds a tokenizer on it.
    pub fn from_vocabulary(vocabulary: Vocabulary) -> Result<Self> {
        vocabulary.validate()?;
        let model = match vocabulary.model.as_str() {
            "gpt2" => Model::ByteLevel(Box::new(ByteLevel::new(&vocabulary)?)),
            "llama" => Model::SentencePiece(Box::new(SentencePiece::new(&vocabulary)?)),
            other => return Err(kind_not_available(other)),
        };
        let end_of_generation = end_of_generation(&vocabulary);
        let types = effective_types(&vocabulary, &end_of_generation);
        let special = SpecialTokens::new(&vocabulary, &types)?;
        let pieces = Pieces::new(&vocabulary, &types, &model);
        let mut ids = HashMap::with_capacity(vocabulary.tokens.len());
        for (id, text) in (0u32..).zip(&vocabulary.tokens) {
            ids.entry(text.as_str().into()).or_insert(id);
        }
        let (bos_default, eos_default, space_default) = match &model {
            Model::ByteLevel(model) => (model.add_bos_default(), false, false),
            Model::SentencePiece(_) => (true, false, true),
        };
        let mut tokenizer = Tokenizer {
            add_bos: vocabulary.add_bos.unwrap_or(bos_default),
            add_eos: vocabulary.add_eos.unwrap_or(eos_default),
            add_space_prefix: vocabulary.add_space_prefix.unwrap_or(space_default),
            vocabulary,
            model,
            special,
            pieces,
            ids,
            types,
            end_of_generation,
        };
        tokenizer.add_bos &= tokenizer.bos_id().is_some();
        tokenizer.add_eos &= tokenizer.eos_id().is_some();
        Ok(tokenizer)
    }

    /// The ids of `text`. A byte for which a byte-level vocabulary has no token is left out, as in the
    /// model's own tokenizer.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(Error::new(
                ErrorKind::LimitExceeded,
                format!(
                    "{} bytes of text, at most {MAX_TEXT_BYTES} are accepted",
                    text.len()
                ),
            ));
        }
        let mut ids = Vec::with_capacity(text.len() / 4 + 2);
        if options.add_special && self.add_bos {
            ids.extend(self.bos_id());
        }
        let fragments = self.special.split(text, options.parse_special);
        match &self.model {
            Model::ByteLevel(model) => encode_byte_level(model, &fragments, &mut ids)?,
            Model::SentencePiece(model) => {
                encode_sentence_piece(model, &fragments, self.add_space_prefix, &mut ids)?;
            }
        }
        if options.add_special && self.add_eos {
            ids.extend(self.eos_id());
        }
        Ok(ids)
    }

    /// The text of `ids`, all at once; [`Detokenizer`](super::Detokenizer) does it token by token.
    /// An id past the vocabulary is an error.
    pub fn decode(&self, ids: &[u32], options: DecodeOptions) -> Result<String> {
        let mut decoder = Decoder::new(self, options);
        let mut text = String::new();
        for &id in ids {
            decoder.push(self, id, &mut text)?;
        }
        decoder.finish(&mut text);
        Ok(text)
    }

    /// The vocabulary this was built from.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Number of tokens; ids are below it.
    pub fn token_count(&self) -> usize {
        self.vocabulary.tokens.len()
    }

    /// The bytes that token `id` stands for. Not always UTF-8: a character may span tokens.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.pieces.get(id)
    }

    /// The id of the token with this text, as the vocabulary writes it.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// What token `id` is for, with the types of markers put right that a file calls ordinary text.
    pub fn token_type(&self, id: u32) -> Option<TokenType> {
        self.types.get(id as usize).copied()
    }

    /// Whether decoding hides token `id` unless asked to show it: control and unknown tokens.
    pub fn is_special(&self, id: u32) -> bool {
        matches!(
            self.token_type(id),
            Some(TokenType::Control | TokenType::Unknown)
        )
    }

    /// Whether a model that samples `id` has said all it has to say: EOS, the end of a turn, and the
    /// markers that published models use for either.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.end_of_generation.contains(&id)
    }

    /// Every id for which [`is_end_of_generation`](Self::is_end_of_generation) holds, ascending.
    pub fn end_of_generation_ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.end_of_generation.iter().copied()
    }

    /// The token that begins a text, if there is one.
    pub fn bos_id(&self) -> Option<u32> {
        self.vocabulary.bos_id.or_else(|| self.implied_id(1))
    }

    /// The token that ends a text, if there is one.
    pub fn eos_id(&self) -> Option<u32> {
        self.vocabulary.eos_id.or_else(|| self.implied_id(2))
    }

    /// Whether [`EncodeOptions::add_special`] puts BOS in front.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether [`EncodeOptions::add_special`] puts EOS behind.
    pub fn adds_eos(&self) -> bool {
        self.add_eos
    }

    /// Whether text begins with a space that the tokenizer put there (SentencePiece).
    pub fn adds_space_prefix(&self) -> bool {
        self.add_space_prefix
    }

    /// SentencePiece numbers BOS 1 and EOS 2 where the file says nothing.
    fn implied_id(&self, id: u32) -> Option<u32> {
        let implied = matches!(self.model, Model::SentencePiece(_))
            && self.token_type(id) == Some(TokenType::Control);
        implied.then_some(id)
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("model", &self.vocabulary.model)
            .field("pre", &self.vocabulary.pre)
            .field("token_count", &self.token_count())
            .finish_non_exhaustive()
    }
}

fn kind_not_available(model: &str) -> Error {
    let name = match model {
        "bert" => "WordPiece",
        "t5" => "Unigram",
        "rwkv" => "RWKV",
        "plamo2" => "PLaMo 2",
        "gemma4" => "Gemma 4",
        "none" | "no_vocab" | "" => {
            return Error::new(
                ErrorKind::NotAvailable,
                "the model has no tokenizer in its file",
            );
        }
        _ => "unknown",
    };
    Error::new(
        ErrorKind::NotAvailable,
        format!(
            "tokenizer kind '{}' ({name}) is not available; byte-level BPE ('gpt2') and SentencePiece ('llama') are",
            shortened(model)
        ),
    )
}

fn encode_byte_level(
    model: &ByteLevel,
    fragments: &[Fragment<'_>],
    ids: &mut Vec<u32>,
) -> Result<()> {
    let mut words = WordCache::default();
    for fragment in fragments {
        match *fragment {
            Fragment::Text(text) => model.encode(text, &mut words, ids)?,
            Fragment::Token(id) => ids.push(id),
        }
    }
    Ok(())
}

/// A space goes before text that begins the input or follows a special token.
fn encode_sentence_piece(
    model: &SentencePiece,
    fragments: &[Fragment<'_>],
    add_space_prefix: bool,
    ids: &mut Vec<u32>,
) -> Result<()> {
    for fragment in fragments {
        match *fragment {
            Fragment::Text(text) => {
                let mut marked = String::with_capacity(text.len() + text.len() / 4 + 4);
                if add_space_prefix {
                    marked.push(SPACE_MARK);
                }
                marked.extend(text.chars().map(|c| if c == ' ' { SPACE_MARK } else { c }));
                model.encode(&marked, ids)?;
            }
            Fragment::Token(id) => ids.push(id),
        }
    }
    Ok(())
}

/// Markers that end a turn or a text. Files often name only one of several, and call others ordinary
/// text; the second value says whether the text alone is proof enough of a marker.
const END_MARKERS: &[(&str, bool)] = &[
    ("<|eot_id|>", true),
    ("<|im_end|>", true),
    ("<|end|>", true),
    ("<|return|>", true),
    ("<|call|>", true),
    ("<|flush|>", true),
    ("<|calls|>", true),
    ("<end_of_turn>", true),
    ("<|endoftext|>", true),
    ("<|eom_id|>", true),
    ("<|end_of_text|>", true),
    ("<end_of_utterance>", true),
    ("<｜end▁of▁sentence｜>", true),
    ("</s>", false),
    ("<eos>", false),
    ("<EOT>", false),
    ("_<EOT>", false),
    ("[EOT]", false),
    ("[EOS]", false),
];

fn end_of_generation(vocabulary: &Vocabulary) -> BTreeSet<u32> {
    let mut found: BTreeSet<u32> = [vocabulary.eos_id, vocabulary.eot_id, vocabulary.eom_id]
        .into_iter()
        .flatten()
        .collect();
    let mut markers: HashMap<&str, u32> = HashMap::new();
    for (id, text) in (0u32..).zip(&vocabulary.tokens) {
        let Some(&(marker, proof)) = END_MARKERS.iter().find(|(marker, _)| marker == text) else {
            continue;
        };
        if proof || vocabulary.token_type(id) == TokenType::Control {
            markers.entry(marker).or_insert(id);
        }
    }
    found.extend(markers.values());
    // Formats with channels end each of several messages of one answer with <|end|>.
    let channels = markers.contains_key("<|call|>") && markers.contains_key("<|return|>")
        || markers.contains_key("<|calls|>") && markers.contains_key("<|flush|>");
    if channels
        && let Some(end) = markers.get("<|end|>")
        && vocabulary.eos_id != Some(*end)
    {
        found.remove(end);
    }
    found
}

fn effective_types(vocabulary: &Vocabulary, end_of_generation: &BTreeSet<u32>) -> Vec<TokenType> {
    let mut types: Vec<TokenType> = (0..vocabulary.tokens.len() as u32)
        .map(|id| vocabulary.token_type(id))
        .collect();
    for &id in end_of_generation {
        let text = vocabulary.token_text(id).unwrap_or_default();
        if END_MARKERS.iter().any(|(marker, _)| *marker == text)
            && let Some(token_type) = types.get_mut(id as usize)
        {
            *token_type = TokenType::Control;
        }
    }
    types
}

/// The bytes of every token, one after another.
struct Pieces {
    bytes: Vec<u8>,
    /// (token count + 1) where each begins; the last is the end.
    begins: Vec<usize>,
}

impl Pieces {
    fn new(vocabulary: &Vocabulary, types: &[TokenType], model: &Model) -> Self {
        let mut bytes = Vec::new();
        let mut begins = Vec::with_capacity(types.len() + 1);
        for (text, token_type) in vocabulary.tokens.iter().zip(types) {
            begins.push(bytes.len());
            match (token_type, model) {
                (TokenType::Byte, _) => bytes.extend(byte_of(text)),
                (TokenType::Control | TokenType::Unknown | TokenType::UserDefined, _) => {
                    bytes.extend_from_slice(text.as_bytes());
                }
                (TokenType::Normal | TokenType::Unused, Model::ByteLevel(_)) => {
                    let mut buffer = [0; 4];
                    for c in text.chars() {
                        match char_to_byte(c) {
                            Some(byte) => bytes.push(byte),
                            None => bytes.extend_from_slice(c.encode_utf8(&mut buffer).as_bytes()),
                        }
                    }
                }
                (TokenType::Normal | TokenType::Unused, Model::SentencePiece(_)) => {
                    bytes.extend_from_slice(text.replace(SPACE_MARK, " ").as_bytes());
                }
            }
        }
        begins.push(bytes.len());
        Pieces { bytes, begins }
    }

    fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let (&begin, &end) = (self.begins.get(id)?, self.begins.get(id + 1)?);
        self.bytes.get(begin..end)
    }
}
