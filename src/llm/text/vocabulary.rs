//! A vocabulary as stated in a GGUF file, and its validation.

use crate::core::error::{Error, ErrorKind, Result};

/// Most tokens a vocabulary may have. The largest published ones have about 262,000.
pub const MAX_TOKENS: usize = 1 << 22;
/// Longest text of one token, in bytes. The longest published ones are runs of a few hundred spaces.
pub const MAX_TOKEN_BYTES: usize = 1 << 14;

/// What a token is for; the values of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenType {
    /// Ordinary text (1), and every value this version does not know.
    #[default]
    Normal,
    /// Stands for text that no token covers (2).
    Unknown,
    /// A marker that is no text: start, end, role (3). Hidden when decoding unless asked for.
    Control,
    /// Text that is always one token (4), found before anything else is split.
    UserDefined,
    /// A hole in the numbering (5).
    Unused,
    /// One byte, written `<0xHH>` (6).
    Byte,
}

impl TokenType {
    /// The type that `tokenizer.ggml.token_type` writes as `value`; unknown values are `Normal`.
    pub fn from_gguf(value: i32) -> Self {
        match value {
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            5 => TokenType::Unused,
            6 => TokenType::Byte,
            _ => TokenType::Normal,
        }
    }
}

/// A chat template of the file, and the name under which it is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedTemplate {
    /// `NAME` of the key `tokenizer.chat_template.NAME`; empty for `tokenizer.chat_template` itself.
    pub name: String,
    /// The template's source.
    pub source: String,
}

/// Everything of `tokenizer.*` that tokenizing, decoding and chat templates need.
///
/// Plain data, so that it can come from a GGUF file, a test or another format. Nothing is checked
/// until [`Vocabulary::validate`], which [`Tokenizer::from_vocabulary`](super::Tokenizer::from_vocabulary)
/// calls. A field that the file does not have is empty or `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vocabulary {
    /// `tokenizer.ggml.model`: "gpt2" (byte-level BPE), "llama" (SentencePiece BPE), "t5" (Unigram),
    /// "bert" (WordPiece), "gemma4" (character BPE), …
    pub model: String,
    /// `tokenizer.ggml.pre`: how text is cut before merging; empty means "default".
    pub pre: String,
    /// `tokenizer.ggml.tokens`: the text of each token; its index is its id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.scores`, one a token, or empty. Higher merges first.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`, one a token, or empty (all normal).
    pub token_types: Vec<TokenType>,
    /// `tokenizer.ggml.merges`: "left right", the best first.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`: begins a text.
    pub bos_id: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`: ends a text.
    pub eos_id: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`: ends a turn.
    pub eot_id: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`: ends a message that expects a tool's answer.
    pub eom_id: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`: text that no token covers.
    pub unk_id: Option<u32>,
    /// `tokenizer.ggml.seperator_token_id`: ends a sentence (WordPiece).
    pub sep_id: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub pad_id: Option<u32>,
    /// `tokenizer.ggml.fim_pre_token_id`: comes before the text in front of a gap.
    pub fim_prefix_id: Option<u32>,
    /// `tokenizer.ggml.fim_suf_token_id`: comes before the text behind a gap.
    pub fim_suffix_id: Option<u32>,
    /// `tokenizer.ggml.fim_mid_token_id`: comes before the text that fills a gap.
    pub fim_middle_id: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`; `None`: what the tokenizer's kind implies.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`; `None`: what the tokenizer's kind implies.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`; `None`: what the tokenizer's kind implies.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.ggml.add_sep_token`; `None`: what the tokenizer's kind implies.
    pub add_sep: Option<bool>,
    /// `tokenizer.ggml.remove_extra_whitespaces` (Unigram); `None`: yes.
    pub remove_extra_whitespaces: Option<bool>,
    /// `tokenizer.ggml.precompiled_charsmap` (Unigram): SentencePiece's normalization; may be empty.
    pub precompiled_charsmap: Vec<u8>,
    /// `tokenizer.ggml.normalizer.nfc` (byte-level BPE): text is put into Unicode's composed form first;
    /// `None`: what the pre-tokenizer implies.
    pub normalizer_nfc: Option<bool>,
    /// `tokenizer.ggml.normalizer.lowercase` (WordPiece); `None`: yes.
    pub normalizer_lowercase: Option<bool>,
    /// `tokenizer.ggml.normalizer.strip_accents` (WordPiece); `None`: as `normalizer_lowercase`.
    pub normalizer_strip_accents: Option<bool>,
    /// `tokenizer.chat_template` and `tokenizer.chat_template.NAME`.
    pub chat_templates: Vec<NamedTemplate>,
}

impl Vocabulary {
    /// The type of token `id`; `Normal` where the file states none.
    pub fn token_type(&self, id: u32) -> TokenType {
        self.token_types
            .get(id as usize)
            .copied()
            .unwrap_or_default()
    }

    /// The text of token `id` as the file has it: still encoded, not yet bytes.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.tokens.get(id as usize).map(String::as_str)
    }

    /// The first token with this text.
    pub(crate) fn id_of(&self, text: &str) -> Option<u32> {
        let index = self.tokens.iter().position(|token| token == text)?;
        u32::try_from(index).ok()
    }

    /// Checks what every kind of tokenizer relies on: the number of tokens and the length of each;
    /// scores and types equal in count; no score that is not a number; special ids inside the
    /// vocabulary; byte tokens well formed.
    pub fn validate(&self) -> Result<()> {
        let count = self.tokens.len();
        if count == 0 {
            return Err(Error::new(
                ErrorKind::Malformed,
                "the vocabulary has no tokens",
            ));
        }
        if count > MAX_TOKENS {
            return Err(Error::new(
                ErrorKind::Malformed,
                format!("the vocabulary has {count} tokens, at most {MAX_TOKENS} are accepted"),
            ));
        }
        for (what, len) in [
            ("scores", self.scores.len()),
            ("token types", self.token_types.len()),
        ] {
            if len != 0 && len != count {
                return Err(Error::new(
                    ErrorKind::Malformed,
                    format!("the vocabulary has {count} tokens but {len} {what}"),
                ));
            }
        }
        if let Some(id) = self.scores.iter().position(|score| score.is_nan()) {
            return Err(Error::new(
                ErrorKind::Malformed,
                format!("the score of token {id} is not a number"),
            ));
        }
        self.validate_special_ids()?;
        for (id, text) in self.tokens.iter().enumerate() {
            if text.len() > MAX_TOKEN_BYTES {
                return Err(Error::new(
                    ErrorKind::Malformed,
                    format!(
                        "token {id} is {} bytes long, at most {MAX_TOKEN_BYTES} are accepted",
                        text.len()
                    ),
                ));
            }
            if self.token_types.get(id) == Some(&TokenType::Byte) && byte_of(text).is_none() {
                return Err(Error::new(
                    ErrorKind::Malformed,
                    format!(
                        "byte token {id} is '{}', not of the form <0xHH>",
                        shortened(text)
                    ),
                ));
            }
        }
        Ok(())
    }

    fn validate_special_ids(&self) -> Result<()> {
        let ids = [
            ("bos", self.bos_id),
            ("eos", self.eos_id),
            ("eot", self.eot_id),
            ("eom", self.eom_id),
            ("unknown", self.unk_id),
            ("separator", self.sep_id),
            ("padding", self.pad_id),
            ("FIM prefix", self.fim_prefix_id),
            ("FIM suffix", self.fim_suffix_id),
            ("FIM middle", self.fim_middle_id),
        ];
        for (name, id) in ids {
            if let Some(id) = id
                && id as usize >= self.tokens.len()
            {
                return Err(Error::new(
                    ErrorKind::Malformed,
                    format!(
                        "the {name} token has id {id}, the vocabulary has {} tokens",
                        self.tokens.len()
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// The byte that a token's text `<0xHH>` stands for.
pub(crate) fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// `text` for an error message: at most 40 characters, control characters escaped.
pub(crate) fn shortened(text: &str) -> String {
    let mut out: String = text.chars().take(40).flat_map(char::escape_debug).collect();
    if text.chars().nth(40).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three_tokens() -> Vocabulary {
        Vocabulary {
            model: "llama".into(),
            tokens: vec!["<unk>".into(), "<0x0A>".into(), "a".into()],
            token_types: vec![TokenType::Unknown, TokenType::Byte, TokenType::Normal],
            scores: vec![0.0, 0.0, -1.0],
            ..Vocabulary::default()
        }
    }

    #[test]
    fn validate_accepts_a_small_vocabulary() {
        assert!(three_tokens().validate().is_ok());
    }

    #[test]
    fn validate_names_both_counts_when_scores_are_short() {
        let mut vocabulary = three_tokens();
        vocabulary.scores.pop();

        let message = vocabulary.validate().unwrap_err().message().to_owned();

        assert_eq!(message, "the vocabulary has 3 tokens but 2 scores");
    }

    #[test]
    fn messages_show_forty_characters_and_no_control_character() {
        let forty = "é".repeat(40);

        assert_eq!(shortened(&forty), forty);
        assert_eq!(shortened(&format!("{forty}x")), format!("{forty}…"));
        assert_eq!(shortened("a\n"), "a\\n");
    }

    #[test]
    fn validate_rejects_special_ids_past_the_end() {
        let mut vocabulary = three_tokens();
        vocabulary.eos_id = Some(3);

        let message = vocabulary.validate().unwrap_err().to_string();

        assert_eq!(
            message,
            "the eos token has id 3, the vocabulary has 3 tokens"
        );
    }

    #[test]
    fn validate_rejects_malformed_byte_tokens() {
        for bad in ["<0x0>", "<0x+A>", "<0xGG>", "0x0A", "<0x0A", "<0x00A>", ""] {
            let mut vocabulary = three_tokens();
            vocabulary.tokens[1] = bad.into();

            assert!(vocabulary.validate().is_err(), "accepted {bad:?}");
        }
    }

    #[test]
    fn validate_rejects_long_tokens_empty_vocabularies_and_nan() {
        let mut long = three_tokens();
        long.tokens[2] = "x".repeat(MAX_TOKEN_BYTES + 1);
        let mut nan = three_tokens();
        nan.scores[2] = f32::NAN;

        assert!(long.validate().is_err());
        long.tokens[2].pop();
        assert!(long.validate().is_ok());
        assert!(nan.validate().is_err());
        assert!(Vocabulary::default().validate().is_err());
    }
}
