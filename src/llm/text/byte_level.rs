//! Byte-level BPE as in GPT-2: every byte maps to a printable character; pairs are merged by rank.

use std::collections::{HashMap, HashSet};

use unicode_normalization::{IsNormalized, UnicodeNormalization as _, is_nfc_quick};

use super::merge::{Merger, NO_TOKEN, Pairs};
use super::pretokenizer::PreTokenizer;
use super::vocabulary::{TokenType, Vocabulary, shortened};
use crate::core::error::{Error, ErrorKind, Result};

/// The character that stands for `byte` in the tokens of a byte-level vocabulary: itself where it is
/// printable Latin-1, else one of U+0100…U+0143 in order.
pub(crate) fn byte_to_char(byte: u8) -> char {
    match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        0..=0x20 => offset_char(u32::from(byte)),
        0x7f..=0xa0 => offset_char(u32::from(byte) - 0x7f + 33),
        0xad => offset_char(67),
    }
}

fn offset_char(offset: u32) -> char {
    char::from_u32(0x100 + offset).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The byte that `c` stands for, if it stands for one.
pub(crate) fn char_to_byte(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// A byte-level BPE tokenizer for text without special tokens.
pub(crate) struct ByteLevel {
    pre: PreTokenizer,
    /// Text is put into Unicode's composed form (NFC) first.
    composes: bool,
    /// The token of each byte. A byte that has none is left out, and nothing merges across it.
    bytes: [u32; 256],
    ranks: Ranks,
    /// Whole words that are one token whatever the merges say; empty unless the pre-tokenizer asks.
    words: HashMap<Box<str>, u32>,
}

/// (left, right) to the rank and the id of what they become.
pub(crate) struct Ranks(HashMap<(u32, u32), (u32, u32)>);

impl Pairs for Ranks {
    fn join(&self, left: u32, right: u32, _: &str) -> Option<(u32, u32)> {
        let &(rank, id) = self.0.get(&(left, right))?;
        Some((u32::MAX - rank, id))
    }
}

impl ByteLevel {
    /// Builds the tables, which takes well under a second for 150,000 tokens. The merges must be
    /// "left right", and left, right and both together must be tokens. Control tokens, by `types`, are
    /// not what text becomes, unless a merge says so.
    pub(crate) fn new(vocabulary: &Vocabulary, types: &[TokenType]) -> Result<Self> {
        let pre = PreTokenizer::named(&vocabulary.pre)?;
        let ids = token_ids(vocabulary);
        let ranks = Ranks::new(&vocabulary.merges, &ids)?;
        let merged = ranks.tokens();
        let is_text =
            |id: u32| types.get(id as usize) != Some(&TokenType::Control) || merged.contains(&id);
        let mut bytes = [NO_TOKEN; 256];
        for byte in 0..=255u8 {
            let mut buffer = [0; 4];
            let text: &str = byte_to_char(byte).encode_utf8(&mut buffer);
            if let Some(&id) = ids.get(text).filter(|&&id| is_text(id)) {
                bytes[usize::from(byte)] = id;
            }
        }
        let words = match pre.ignore_merges {
            false => HashMap::new(),
            true => ids
                .iter()
                .filter(|&(text, &id)| !text.is_empty() && is_text(id))
                .map(|(text, &id)| ((*text).into(), id))
                .collect(),
        };
        Ok(ByteLevel {
            composes: vocabulary.normalizer_nfc.unwrap_or(pre.composes),
            pre,
            bytes,
            ranks,
            words,
        })
    }

    /// Whether texts begin with BOS where the file does not say.
    pub(crate) fn add_bos_default(&self) -> bool {
        self.pre.add_bos
    }

    /// Appends the ids of `text`. `words` remembers words between calls with texts of one lifetime.
    pub(crate) fn encode<'t>(
        &self,
        text: &'t str,
        words: &mut WordCache<'t>,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        if self.composes && is_nfc_quick(text.chars()) != IsNormalized::Yes {
            let composed: String = text.nfc().collect();
            return self.encode_composed(&composed, &mut WordCache::default(), out);
        }
        self.encode_composed(text, words, out)
    }

    fn encode_composed<'t>(
        &self,
        text: &'t str,
        words: &mut WordCache<'t>,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        for range in self.pre.split(text)? {
            let word = &text[range];
            if let Some(ids) = words.get(word) {
                out.extend_from_slice(ids);
                continue;
            }
            let begin = out.len();
            self.encode_word(word, &mut words.merger, out)?;
            words.insert(word, &out[begin..]);
        }
        Ok(())
    }

    fn encode_word(&self, word: &str, merger: &mut Merger, out: &mut Vec<u32>) -> Result<()> {
        let has_token = |byte: &u8| self.bytes[usize::from(*byte)] != NO_TOKEN;
        for run in word.as_bytes().split(|byte| !has_token(byte)) {
            let encoded: String = run.iter().map(|&byte| byte_to_char(byte)).collect();
            if let Some(&id) = self.words.get(encoded.as_str()) {
                out.push(id);
                continue;
            }
            let characters = run.iter().map(|&byte| {
                let id = self.bytes[usize::from(byte)];
                (id, byte_to_char(byte).len_utf8())
            });
            merger.merge(&encoded, characters, &self.ranks)?;
            out.extend(merger.symbols().map(|token| token.id));
        }
        Ok(())
    }
}

/// Ids of the words met so far in one text; it stops growing at a fixed size.
#[derive(Default)]
pub(crate) struct WordCache<'t> {
    ids: HashMap<&'t str, Box<[u32]>>,
    merger: Merger,
}

impl<'t> WordCache<'t> {
    const WORDS_MAX: usize = 1 << 16;
    const WORD_BYTES_MAX: usize = 64;

    fn get(&self, word: &str) -> Option<&[u32]> {
        self.ids.get(word).map(AsRef::as_ref)
    }

    fn insert(&mut self, word: &'t str, ids: &[u32]) {
        if self.ids.len() < Self::WORDS_MAX && word.len() <= Self::WORD_BYTES_MAX {
            self.ids.insert(word, ids.into());
        }
    }
}

/// Text to id; of equal texts the lowest id counts.
pub(crate) fn token_ids(vocabulary: &Vocabulary) -> HashMap<&str, u32> {
    let mut ids = HashMap::with_capacity(vocabulary.tokens.len());
    for (id, text) in (0u32..).zip(&vocabulary.tokens) {
        ids.entry(text.as_str()).or_insert(id);
    }
    ids
}

impl Ranks {
    /// Splits the merges and checks them; of equal ones the first, which is the best, counts.
    pub(crate) fn new(merges: &[String], ids: &HashMap<&str, u32>) -> Result<Self> {
        let mut ranks = HashMap::with_capacity(merges.len());
        let mut both = String::new();
        for (rank, merge) in (0u32..).zip(merges) {
            let first_bytes = merge.chars().next().map_or(0, char::len_utf8);
            let Some(space) = merge[first_bytes..].find(' ').map(|at| at + first_bytes) else {
                return Err(Error::new(
                    ErrorKind::Malformed,
                    format!(
                        "merge {rank} is '{}', not two tokens with a space between them",
                        shortened(merge)
                    ),
                ));
            };
            let (left, right) = (&merge[..space], &merge[space + 1..]);
            both.clear();
            both.push_str(left);
            both.push_str(right);
            let id_of = |part: &str| {
                ids.get(part).copied().ok_or_else(|| {
                    Error::new(
                        ErrorKind::Malformed,
                        format!(
                            "merge {rank} ('{}') needs '{}', which is no token",
                            shortened(merge),
                            shortened(part)
                        ),
                    )
                })
            };
            let pair = (id_of(left)?, id_of(right)?);
            let joined = id_of(&both)?;
            ranks.entry(pair).or_insert((rank, joined));
        }
        Ok(Ranks(ranks))
    }

    /// Every token that takes part in a merge.
    fn tokens(&self) -> HashSet<u32> {
        let merges = self.0.iter();
        merges
            .flat_map(|(&(left, right), &(_, both))| [left, right, both])
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A vocabulary of all bytes and the given merges.
    pub(crate) fn byte_vocabulary(merges: &[&str]) -> Vocabulary {
        let mut tokens: Vec<String> = (0..=255u8).map(|b| byte_to_char(b).to_string()).collect();
        tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
        Vocabulary {
            model: "gpt2".into(),
            pre: "gpt2".into(),
            tokens,
            merges: merges.iter().map(ToString::to_string).collect(),
            ..Vocabulary::default()
        }
    }

    fn encode(vocabulary: &Vocabulary, text: &str) -> Vec<String> {
        let model = ByteLevel::new(vocabulary, &vocabulary.token_types).unwrap();
        let mut ids = Vec::new();
        model
            .encode(text, &mut WordCache::default(), &mut ids)
            .unwrap();
        ids.iter()
            .map(|&id| vocabulary.tokens[id as usize].clone())
            .collect()
    }

    #[test]
    fn bytes_and_characters_are_one_to_one() {
        for byte in 0..=255u8 {
            assert_eq!(char_to_byte(byte_to_char(byte)), Some(byte));
        }
        assert_eq!(byte_to_char(b' '), 'Ġ');
        assert_eq!(byte_to_char(b'\n'), 'Ċ');
        assert_eq!(char_to_byte('ń'), None);
    }

    #[test]
    fn the_best_rank_merges_first_and_leftmost_of_equals() {
        let vocabulary = byte_vocabulary(&["b c", "a b", "a a"]);

        assert_eq!(encode(&vocabulary, "abc"), ["a", "bc"]);
        assert_eq!(encode(&vocabulary, "aaa"), ["aa", "a"]);
    }

    #[test]
    fn of_equal_merges_the_first_counts() {
        let vocabulary = byte_vocabulary(&["b c", "a b", "b c"]);

        assert_eq!(encode(&vocabulary, "abc"), ["a", "bc"]);
    }

    #[test]
    fn text_is_composed_where_the_file_says_so() {
        let mut vocabulary = byte_vocabulary(&[]);

        let as_written = encode(&vocabulary, "e\u{301}");
        vocabulary.normalizer_nfc = Some(true);
        let composed = encode(&vocabulary, "e\u{301}");

        assert_eq!(as_written.len(), 3);
        assert_eq!(composed, ["Ã", "©"], "the bytes of é");
    }

    #[test]
    fn a_byte_without_a_token_is_left_out_and_separates() {
        let mut vocabulary = byte_vocabulary(&["a b"]);
        vocabulary.tokens[usize::from(b'-')] = "gone".into();
        vocabulary.pre = "superbpe".into();

        assert_eq!(encode(&vocabulary, "a-b"), ["a", "b"]);
        assert_eq!(encode(&vocabulary, "-ab-"), ["ab"]);
    }

    #[test]
    fn merges_that_name_no_token_are_refused() {
        for (merge, why) in [
            (
                "ab",
                "merge 0 is 'ab', not two tokens with a space between them",
            ),
            ("a zz", "merge 0 ('a zz') needs 'zz', which is no token"),
            ("a b", "merge 0 ('a b') needs 'ab', which is no token"),
            (
                " ",
                "merge 0 is ' ', not two tokens with a space between them",
            ),
            (
                "",
                "merge 0 is '', not two tokens with a space between them",
            ),
        ] {
            let mut vocabulary = byte_vocabulary(&[]);
            vocabulary.merges = vec![merge.into()];

            let error = ByteLevel::new(&vocabulary, &[]).err().unwrap();

            assert_eq!(error.message(), why);
        }
    }

    #[test]
    fn control_tokens_never_come_from_text() {
        let mut vocabulary = byte_vocabulary(&[]);
        vocabulary.pre = "llama3".into();
        vocabulary.tokens.push("stop".into());
        vocabulary.token_types = vec![TokenType::Normal; 257];

        let as_text = encode(&vocabulary, "stop");
        vocabulary.token_types[256] = TokenType::Control;
        let as_control = encode(&vocabulary, "stop");

        assert_eq!(as_text, ["stop"], "whole words are tokens in this family");
        assert_eq!(as_control, ["s", "t", "o", "p"]);
    }
}
