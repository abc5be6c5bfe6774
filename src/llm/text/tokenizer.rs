//! Converts text to token ids and back, with the vocabulary of a model.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use super::byte_level::{ByteLevel, WordCache, char_to_byte};
use super::character_bpe::CharacterBpe;
use super::detokenizer::{DecodeOptions, Decoder};
use super::merge::Merger;
use super::sentence_piece::{SPACE_MARK, SentencePiece};
use super::special::{Fragment, SpecialTokens};
use super::unigram::Unigram;
use super::vocabulary::{TokenType, Vocabulary, byte_of, shortened};
use super::word_piece::{self, WordPiece};
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
/// By `tokenizer.ggml.model`: byte-level BPE ("gpt2"), SentencePiece BPE ("llama"), Unigram ("t5"),
/// WordPiece ("bert") and character BPE ("gemma4"). Other kinds are a
/// [`NotAvailable`](crate::ErrorKind::NotAvailable) error.
///
/// ```
/// use worker_cuda::text::{DecodeOptions, EncodeOptions, TokenType, Tokenizer, Vocabulary};
///
/// let vocabulary = Vocabulary {
///     model: "llama".into(),
///     tokens: ["<unk>", "▁", "h", "i", "hi", "▁hi"].map(String::from).to_vec(),
///     scores: vec![0.0, -5.0, -6.0, -7.0, -2.0, -1.0],
///     token_types: [[TokenType::Unknown].as_slice(), &[TokenType::Normal; 5]].concat(),
///     unk_id: Some(0),
///     ..Vocabulary::default()
/// };
/// let tokenizer = Tokenizer::from_vocabulary(vocabulary)?;
///
/// let ids = tokenizer.encode("hi hi", EncodeOptions::default())?;
/// assert_eq!(ids, [5, 5]);
/// assert_eq!(tokenizer.decode(&ids, DecodeOptions::default())?, " hi hi");
/// # Ok::<(), worker_cuda::Error>(())
/// ```
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
    add_sep: bool,
    add_space_prefix: bool,
}

enum Model {
    ByteLevel(Box<ByteLevel>),
    SentencePiece(Box<SentencePiece>),
    Unigram(Box<Unigram>),
    WordPiece(Box<WordPiece>),
    CharacterBpe(Box<CharacterBpe>),
}

/// What a kind of tokenizer does where the file does not say.
struct Defaults {
    add_bos: bool,
    add_eos: bool,
    add_sep: bool,
    add_space_prefix: bool,
}

impl Model {
    fn new(vocabulary: &Vocabulary, types: &[TokenType]) -> Result<Self> {
        Ok(match vocabulary.model.as_str() {
            "gpt2" => Model::ByteLevel(Box::new(ByteLevel::new(vocabulary, types)?)),
            "llama" => Model::SentencePiece(Box::new(SentencePiece::new(vocabulary, types)?)),
            "t5" => Model::Unigram(Box::new(Unigram::new(vocabulary, types)?)),
            "bert" => Model::WordPiece(Box::new(WordPiece::new(vocabulary, types)?)),
            "gemma4" => Model::CharacterBpe(Box::new(CharacterBpe::new(vocabulary, types)?)),
            other => return Err(kind_not_available(other)),
        })
    }

    fn defaults(&self) -> Defaults {
        Defaults {
            add_bos: match self {
                Model::ByteLevel(model) => model.add_bos_default(),
                Model::SentencePiece(_) | Model::WordPiece(_) | Model::CharacterBpe(_) => true,
                Model::Unigram(_) => false,
            },
            add_eos: matches!(self, Model::Unigram(_)),
            add_sep: matches!(self, Model::WordPiece(_)),
            // WordPiece puts a space before each word when it decodes.
            add_space_prefix: matches!(
                self,
                Model::SentencePiece(_) | Model::Unigram(_) | Model::WordPiece(_)
            ),
        }
    }

    /// Whether a space is U+2581 in the tokens, and user-defined tokens are found after it has become so.
    fn marks_spaces(&self) -> bool {
        matches!(
            self,
            Model::SentencePiece(_) | Model::CharacterBpe(_) | Model::Unigram(_)
        )
    }
}

impl Tokenizer {
    /// Checks `vocabulary` and builds a tokenizer on it.
    pub fn from_vocabulary(vocabulary: Vocabulary) -> Result<Self> {
        vocabulary.validate()?;
        let end_of_generation = end_of_generation(&vocabulary);
        let types = effective_types(&vocabulary, &end_of_generation);
        let model = Model::new(&vocabulary, &types)?;
        let special = SpecialTokens::new(&vocabulary, &types, model.marks_spaces())?;
        let pieces = Pieces::new(&vocabulary, &types, &model);
        let mut ids = HashMap::with_capacity(vocabulary.tokens.len());
        for (id, text) in (0u32..).zip(&vocabulary.tokens) {
            ids.entry(text.as_str().into()).or_insert(id);
        }
        let defaults = model.defaults();
        let mut tokenizer = Tokenizer {
            add_bos: vocabulary.add_bos.unwrap_or(defaults.add_bos),
            add_eos: vocabulary.add_eos.unwrap_or(defaults.add_eos),
            add_sep: vocabulary.add_sep.unwrap_or(defaults.add_sep),
            add_space_prefix: vocabulary
                .add_space_prefix
                .unwrap_or(defaults.add_space_prefix),
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
        self.encode_text(text, options.parse_special, &mut ids)?;
        if options.add_special && self.add_sep {
            ids.extend(self.sep_id());
        }
        if options.add_special && self.add_eos {
            ids.extend(self.eos_id());
        }
        Ok(ids)
    }

    /// The ids of a prompt whose answer is the text between `prefix` and `suffix` (fill-in-the-middle). None if the
    /// vocabulary has no tokens for that.
    pub fn encode_infill(&self, prefix: &str, suffix: &str) -> Result<Option<Vec<u32>>> {
        let Some(markers) = self.fim_ids() else {
            return Ok(None);
        };
        let mut ids = Vec::new();
        if self.add_bos {
            ids.extend(self.bos_id());
        }
        for (marker, text) in markers.into_iter().zip([prefix, suffix, ""]) {
            ids.push(marker);
            ids.extend(self.encode(text, EncodeOptions::default())?);
        }
        Ok(Some(ids))
    }

    /// The tokens before the text in front of a gap, behind it, and in it: those that the file names, or those of
    /// published models.
    fn fim_ids(&self) -> Option<[u32; 3]> {
        let Vocabulary {
            fim_prefix_id,
            fim_suffix_id,
            fim_middle_id,
            ..
        } = self.vocabulary;
        if let (Some(prefix), Some(suffix), Some(middle)) =
            (fim_prefix_id, fim_suffix_id, fim_middle_id)
        {
            return Some([prefix, suffix, middle]);
        }
        FIM_MARKERS.iter().find_map(|[prefix, suffix, middle]| {
            Some([
                self.token_id(prefix)?,
                self.token_id(suffix)?,
                self.token_id(middle)?,
            ])
        })
    }

    fn encode_text(&self, text: &str, parse_special: bool, ids: &mut Vec<u32>) -> Result<()> {
        let mut words = WordCache::default();
        let mut merger = Merger::default();
        for fragment in self.special.split(text, parse_special) {
            let text = match fragment {
                Fragment::Token(id) => {
                    ids.push(id);
                    continue;
                }
                Fragment::Text(text) => text,
            };
            match &self.model {
                Model::ByteLevel(model) => model.encode(text, &mut words, ids)?,
                Model::Unigram(model) => model.encode(text, ids)?,
                Model::WordPiece(model) => model.encode(text, ids)?,
                Model::SentencePiece(_) | Model::CharacterBpe(_) => {
                    self.encode_marked(text, &mut merger, ids)?;
                }
            }
        }
        Ok(())
    }

    /// Text in which a space becomes a mark before user-defined tokens are found in it. A mark goes
    /// before text that begins the input or follows a control token.
    fn encode_marked(&self, text: &str, merger: &mut Merger, ids: &mut Vec<u32>) -> Result<()> {
        let mut marked = String::with_capacity(text.len() + text.len() / 4 + 4);
        if self.add_space_prefix {
            marked.push(SPACE_MARK);
        }
        marked.extend(text.chars().map(|c| if c == ' ' { SPACE_MARK } else { c }));
        for fragment in self.special.split_user_defined(&marked) {
            match (fragment, &self.model) {
                (Fragment::Token(id), _) => ids.push(id),
                (Fragment::Text(text), Model::SentencePiece(model)) => {
                    model.encode(text, merger, ids)?;
                }
                (Fragment::Text(text), Model::CharacterBpe(model)) => {
                    model.encode(text, merger, ids)?;
                }
                (Fragment::Text(_), _) => {}
            }
        }
        Ok(())
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
        let implied = || match self.model {
            Model::WordPiece(_) => self.token_id("[CLS]"),
            _ => self.implied_id(1),
        };
        self.vocabulary.bos_id.or_else(implied)
    }

    /// The token that ends a sentence, if there is one.
    pub fn sep_id(&self) -> Option<u32> {
        let implied = || match self.model {
            Model::WordPiece(_) => self.token_id("[SEP]"),
            _ => None,
        };
        self.vocabulary.sep_id.or_else(implied)
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
        "rwkv" => "RWKV",
        "plamo2" => "PLaMo 2",
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
            "tokenizer kind '{}' ({name}) is not available; 'gpt2', 'llama', 't5', 'bert' and 'gemma4' are",
            shortened(model)
        ),
    )
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

/// Markers of published models around gaps. No vocabulary has all three for another purpose.
const FIM_MARKERS: [[&str; 3]; 6] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
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
                (TokenType::Control | TokenType::Unknown, _)
                | (TokenType::UserDefined, Model::ByteLevel(_) | Model::WordPiece(_)) => {
                    bytes.extend_from_slice(text.as_bytes());
                }
                (_, Model::WordPiece(_)) => {
                    bytes.extend_from_slice(word_piece::decoded(text).as_bytes());
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
                (_, Model::SentencePiece(_) | Model::Unigram(_) | Model::CharacterBpe(_)) => {
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
