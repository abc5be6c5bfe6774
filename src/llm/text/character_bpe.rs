//! BPE over characters, as Gemma 4 has it: merged by rank like byte-level BPE, with spaces as marks and
//! bytes for unknown characters like SentencePiece.

use std::collections::HashMap;

use super::byte_level::{Ranks, token_ids};
use super::merge::{Merger, NO_TOKEN};
use super::sentence_piece::{byte_tokens, push_bytes};
use super::vocabulary::{TokenType, Vocabulary};
use crate::core::error::Result;

/// A character BPE tokenizer for text without special tokens.
pub(crate) struct CharacterBpe {
    ranks: Ranks,
    /// The tokens of one character.
    characters: HashMap<char, u32>,
    /// The token of each byte.
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
}

impl CharacterBpe {
    /// Builds the tables. Control, unknown and byte tokens, by `types`, are not what text becomes.
    pub(crate) fn new(vocabulary: &Vocabulary, types: &[TokenType]) -> Result<Self> {
        let mut characters = HashMap::new();
        for (id, (text, token_type)) in (0u32..).zip(vocabulary.tokens.iter().zip(types)) {
            let mut chars = text.chars();
            if let (Some(c), None) = (chars.next(), chars.next())
                && matches!(token_type, TokenType::Normal | TokenType::UserDefined)
            {
                characters.entry(c).or_insert(id);
            }
        }
        Ok(CharacterBpe {
            ranks: Ranks::new(&vocabulary.merges, &token_ids(vocabulary))?,
            characters,
            bytes: byte_tokens(vocabulary, types),
            unknown: vocabulary.unk_id,
        })
    }

    /// Appends the ids of `text`, in which spaces are marks already. Runs of newlines are words of their
    /// own; everything between them is one word.
    pub(crate) fn encode(&self, text: &str, merger: &mut Merger, out: &mut Vec<u32>) -> Result<()> {
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let is_newline = first == '\n';
            let end = rest
                .find(|c| (c == '\n') != is_newline)
                .unwrap_or(rest.len());
            let (word, behind) = rest.split_at(end);
            let characters = word.chars().map(|c| {
                let id = self.characters.get(&c).copied().unwrap_or(NO_TOKEN);
                (id, c.len_utf8())
            });
            merger.merge(word, characters, &self.ranks)?;
            for token in merger.symbols() {
                if token.id != NO_TOKEN {
                    out.push(token.id);
                } else if !push_bytes(token.text(word), &self.bytes, out) {
                    out.extend(self.unknown);
                }
            }
            rest = behind;
        }
        Ok(())
    }
}
