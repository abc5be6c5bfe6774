//! Reads a vocabulary from a GGUF file's metadata. The native library parses the file; what the keys mean to a
//! tokenizer is known here alone. Native code only checks the vocabulary of a model that it loads (llm/model).

use super::tokenizer::Tokenizer;
use super::vocabulary::{NamedTemplate, TokenType, Vocabulary};
use crate::core::error::{Error, ErrorKind, Result};
use crate::llm::gguf::{Gguf, ValueType};

const TEMPLATE_KEY: &str = "tokenizer.chat_template";

impl Vocabulary {
    /// The vocabulary of a file. Needs the metadata only, so a file without tensors is enough. A file
    /// without a vocabulary is [`ErrorKind::NotAvailable`]; a key of a wrong type is
    /// [`ErrorKind::Malformed`].
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        let model = gguf.str("tokenizer.ggml.model")?;
        let tokens = gguf.array("tokenizer.ggml.tokens")?;
        let (Some(model), Some(tokens)) = (model, tokens) else {
            return Err(Error::new(
                ErrorKind::NotAvailable,
                "the file has no vocabulary (tokenizer.ggml.model and tokenizer.ggml.tokens)",
            ));
        };
        Ok(Vocabulary {
            model: model.to_owned(),
            pre: gguf
                .str("tokenizer.ggml.pre")?
                .unwrap_or_default()
                .to_owned(),
            tokens: owned(tokens.strings()?),
            scores: scores(gguf)?,
            token_types: token_types(gguf)?,
            merges: merges(gguf, model)?,
            bos_id: special_id(gguf, "tokenizer.ggml.bos_token_id")?,
            eos_id: special_id(gguf, "tokenizer.ggml.eos_token_id")?,
            eot_id: special_id(gguf, "tokenizer.ggml.eot_token_id")?,
            eom_id: special_id(gguf, "tokenizer.ggml.eom_token_id")?,
            unk_id: special_id(gguf, "tokenizer.ggml.unknown_token_id")?,
            // The key is misspelt in the format.
            sep_id: special_id(gguf, "tokenizer.ggml.seperator_token_id")?,
            pad_id: special_id(gguf, "tokenizer.ggml.padding_token_id")?,
            fim_prefix_id: fim_id(gguf, "fim_pre", "prefix")?,
            fim_suffix_id: fim_id(gguf, "fim_suf", "suffix")?,
            fim_middle_id: fim_id(gguf, "fim_mid", "middle")?,
            add_bos: gguf.bool("tokenizer.ggml.add_bos_token")?,
            add_eos: gguf.bool("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: gguf.bool("tokenizer.ggml.add_space_prefix")?,
            add_sep: gguf.bool("tokenizer.ggml.add_sep_token")?,
            remove_extra_whitespaces: gguf.bool("tokenizer.ggml.remove_extra_whitespaces")?,
            precompiled_charsmap: charsmap(gguf)?,
            normalizer_nfc: gguf.bool("tokenizer.ggml.normalizer.nfc")?,
            normalizer_lowercase: gguf.bool("tokenizer.ggml.normalizer.lowercase")?,
            normalizer_strip_accents: gguf.bool("tokenizer.ggml.normalizer.strip_accents")?,
            chat_templates: chat_templates(gguf)?,
        })
    }
}

impl Tokenizer {
    /// The tokenizer of a file: [`Vocabulary::from_gguf`], then [`Tokenizer::from_vocabulary`].
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        Self::from_vocabulary(Vocabulary::from_gguf(gguf)?)
    }
}

fn owned(texts: Vec<&str>) -> Vec<String> {
    texts.into_iter().map(str::to_owned).collect()
}

fn merges(gguf: &Gguf, model: &str) -> Result<Vec<String>> {
    let merges = match gguf.array("tokenizer.ggml.merges")? {
        Some(merges) => owned(merges.strings()?),
        None => Vec::new(),
    };
    if merges.is_empty() && matches!(model, "gpt2" | "gemma4") {
        return Err(Error::new(
            ErrorKind::Malformed,
            format!("a vocabulary of kind '{model}' needs tokenizer.ggml.merges"),
        ));
    }
    Ok(merges)
}

fn scores(gguf: &Gguf) -> Result<Vec<f32>> {
    match gguf.array("tokenizer.ggml.scores")? {
        None => Ok(Vec::new()),
        Some(array) if array.element_type() == ValueType::F32 => array.numbers(),
        Some(array) => Err(wrong_elements("scores", "f32", array.element_type())),
    }
}

fn token_types(gguf: &Gguf) -> Result<Vec<TokenType>> {
    let Some(array) = gguf.array("tokenizer.ggml.token_type")? else {
        return Ok(Vec::new());
    };
    if !matches!(array.element_type(), ValueType::I32 | ValueType::U32) {
        return Err(wrong_elements("token_type", "i32", array.element_type()));
    }
    let types = array.integers()?.into_iter();
    Ok(types
        .map(|value| TokenType::from_gguf(i32::try_from(value).unwrap_or_default()))
        .collect())
}

fn charsmap(gguf: &Gguf) -> Result<Vec<u8>> {
    let Some(array) = gguf.array("tokenizer.ggml.precompiled_charsmap")? else {
        return Ok(Vec::new());
    };
    if !matches!(array.element_type(), ValueType::I8 | ValueType::U8) {
        return Err(wrong_elements(
            "precompiled_charsmap",
            "u8",
            array.element_type(),
        ));
    }
    // Converters write the bytes as signed or unsigned numbers.
    let bytes = array.integers()?.into_iter();
    Ok(bytes.map(|byte| (byte & 0xff) as u8).collect())
}

fn wrong_elements(key: &str, wanted: &str, found: ValueType) -> Error {
    Error::new(
        ErrorKind::Malformed,
        format!("metadata key 'tokenizer.ggml.{key}' is an array of {found:?}, not of {wanted}"),
    )
}

/// Converters write "none" as -1, which reads as the greatest u32 from an unsigned field.
fn special_id(gguf: &Gguf, key: &str) -> Result<Option<u32>> {
    let Some(value) = gguf.value(key)? else {
        return Ok(None);
    };
    match value.as_i64() {
        Some(-1 | 0xffff_ffff) => Ok(None),
        Some(id) => u32::try_from(id).map(Some).map_err(|_| {
            Error::new(
                ErrorKind::Malformed,
                format!("metadata key '{key}' is {id}, which is no token id"),
            )
        }),
        None => Err(Error::new(
            ErrorKind::Malformed,
            format!("metadata key '{key}' is {value:?}, not a token id"),
        )),
    }
}

/// Older files have other keys for the tokens around gaps.
fn fim_id(gguf: &Gguf, name: &str, older: &str) -> Result<Option<u32>> {
    match special_id(gguf, &format!("tokenizer.ggml.{name}_token_id"))? {
        None => special_id(gguf, &format!("tokenizer.ggml.{older}_token_id")),
        found => Ok(found),
    }
}

fn chat_templates(gguf: &Gguf) -> Result<Vec<NamedTemplate>> {
    let mut templates = Vec::new();
    for entry in gguf.metadata() {
        let (key, value) = entry?;
        let Some(rest) = key.strip_prefix(TEMPLATE_KEY) else {
            continue;
        };
        let name = match rest.strip_prefix('.') {
            Some(name) => name,
            None if rest.is_empty() => "",
            None => continue,
        };
        let source = value.as_str().ok_or_else(|| {
            Error::new(
                ErrorKind::Malformed,
                format!("metadata key '{key}' is {value:?}, not a text"),
            )
        })?;
        templates.push(NamedTemplate {
            name: name.to_owned(),
            source: source.to_owned(),
        });
    }
    Ok(templates)
}
