//! Splits text into words before byte pairs are merged: one list of patterns per pre-tokenizer name.
//!
//! A name of `tokenizer.ggml.pre` stands for an ordered list of steps. Each step splits every piece of the
//! previous step: its matches become pieces, and so does the text between them. The patterns are those of
//! the published tokenizers; if a model's own definition and a common approximation differ, the model's own
//! is used.

use fancy_regex::Regex;
use std::ops::Range;

use super::vocabulary::shortened;
use crate::core::error::{Error, ErrorKind, Result};

/// GPT-2's words: contractions, letters, numbers, the rest, each with the space before it.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Llama 3 (and GPT-4): numbers in threes, newlines kept with punctuation.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// As `LLAMA3` with single digits.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// As `QWEN2`, combining marks belong to words.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// As `LLAMA3` with whole numbers.
const MINICPM5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// As `QWEN2` without English contractions.
const UFAKZEKA: &str =
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// As `LLAMA3`, runs of spaces cut into powers of two.
const JAIS2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
/// As `QWEN2`, newlines never with punctuation.
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
/// As `QWEN2`, one newline at a time.
const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
/// Letters with their marks; single letters with spaces between them stay together.
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
/// Words cut where case changes; single digits.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// GPT-4o: words cut where case changes, contractions kept with them.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// As `GPT4O` with single digits.
const YOUTU_WORDS: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Korean, East Asian punctuation, Bopomofo, Chinese and Japanese.
const YOUTU_SCRIPTS: &str = r"[\x{ac00}-\x{d7a3}\x{3131}-\x{318e}]+|[\x{ff01}\x{2026}\x{201c}\x{201d}\x{2018}\x{2019}\x{2014}\x{ff1a}\x{ff1b}\x{ff0c}\x{3001}-\x{303f}\x{fe30}-\x{fe4f}]+|[\x{3105}-\x{312f}]+|[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+";
/// As `GPT4O`, Chinese characters apart.
const KIMI_K2: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Letters that have case, as an explicit list.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}",
    r"\x{295}-\x{2af}\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}",
    r"\x{38c}\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}",
    r"\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}",
    r"\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}",
    r"\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d}",
    r"\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}",
    r"\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102}\x{2107}",
    r"\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d}",
    r"\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}",
    r"\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}",
    r"\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-\x{a787}\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}",
    r"\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}",
    r"\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df}",
    r"\x{1e900}-\x{1e943}]+"
);
/// Punctuation, ASCII and East Asian.
const DEEPSEEK_PUNCTUATION: &str =
    r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+";
/// Scripts without case from U+0800 on, and Hangul.
const DEEPSEEK_CJK: &str = r"[\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+";
/// Chinese and Japanese.
const CJK_KANA: &str = r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+";
/// DeepSeek V3: an ASCII sign may begin a word; marks belong to words.
const DEEPSEEK3_WORDS: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
/// As `DEEPSEEK3_WORDS`, one newline at a time.
const SPARK_WORDS: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##;
/// Scripts written without spaces.
const AFMOE_SCRIPTS: &str = r"[\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{8c48}-\x{faff}\x{3040}-\x{309f}\x{30a0}-\x{30ff}\x{ff65}-\x{ff9f}\x{2f00}-\x{2fdf}\x{e40}-\x{e7f}\x{e80}-\x{eff}\x{1780}-\x{17ff}\x{1000}-\x{109f}\x{aa60}-\x{aa7f}\x{a9e0}-\x{a9ff}\x{ac00}-\x{d7af}\x{1100}-\x{11ff}]+";
/// Everything up to white space or sentence punctuation.
const BLOOM: &str = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{ff0c}\x{3001}\x{964}\x{6d4}\x{60c})]+";
/// Punctuation and ASCII signs, in runs.
const PUNCTUATION_RUN: &str = r"[\p{P}\$\+<=>\^~\|]+";
/// As `PUNCTUATION_RUN`, with the backtick.
const FALCON_PUNCTUATION: &str = r"[\p{P}\$\+<=>\^~\|`]+";

/// One step of a list.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Matches of this pattern.
    Pattern(&'static str),
    /// Runs of decimal digits, grouped by three from the right.
    DigitGroups {
        /// Leave a run alone that a letter, mark or underscore follows.
        before_boundary: bool,
    },
}

use Step::{DigitGroups, Pattern};

/// What a pre-tokenizer name implies.
struct Kind {
    names: &'static [&'static str],
    steps: &'static [Step],
    /// A word that is a token as a whole is that token, whatever the merges say.
    ignore_merges: bool,
    /// Begin with BOS unless the file says otherwise.
    add_bos: bool,
    /// Text is put into Unicode's composed form (NFC) first.
    composes: bool,
}

const fn kind(names: &'static [&'static str], steps: &'static [Step]) -> Kind {
    Kind {
        names,
        steps,
        ignore_merges: false,
        add_bos: false,
        composes: false,
    }
}

const DIGIT_THEN_GPT2: &[Step] = &[Pattern(r"\p{N}"), Pattern(GPT2)];
const DEEPSEEK3: &[Step] = &[
    Pattern(r"\p{N}{1,3}"),
    Pattern(CJK_KANA),
    Pattern(DEEPSEEK3_WORDS),
];

/// Every known name. The first of each row is the one the family is listed under; the others are
/// what converters write for it, or for models that share it.
const KINDS: &[Kind] = &[
    kind(
        &["default"],
        &[
            Pattern(PUNCTUATION_RUN),
            Pattern(GPT2),
            Pattern(r"\p{N}+"),
            Pattern("[0-9][0-9][0-9]"),
        ],
    ),
    Kind {
        names: &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "pixtral",
            "falcon3",
            "falcon-h1",
            "midm-2.0",
            "lfm2",
        ],
        steps: &[Pattern(LLAMA3)],
        ignore_merges: true,
        add_bos: true,
        composes: false,
    },
    kind(
        &["deepseek-llm"],
        &[
            Pattern(r"[\r\n]"),
            Pattern(DEEPSEEK_LETTERS),
            Pattern(DEEPSEEK_PUNCTUATION),
            Pattern(r"\s+$"),
            Pattern(DEEPSEEK_CJK),
            Pattern(r"\p{N}+"),
        ],
    ),
    kind(
        &["deepseek-coder"],
        &[
            Pattern(r"[\r\n]"),
            Pattern(r"\s?\p{L}+"),
            Pattern(r"\s?\p{P}+"),
            Pattern(DEEPSEEK_CJK),
            Pattern(r"\p{N}"),
        ],
    ),
    kind(
        &[
            "deepseek3",
            "deepseek-v3",
            "hunyuan-dense",
            "joyai",
            "joyai-llm",
            "hy_v4",
        ],
        DEEPSEEK3,
    ),
    kind(
        &["spark2_5"],
        &[
            Pattern(r"\p{N}{1,3}"),
            Pattern(CJK_KANA),
            Pattern(SPARK_WORDS),
            Pattern(r"\p{N}"),
        ],
    ),
    Kind {
        names: &["youtu"],
        steps: &[Pattern(YOUTU_SCRIPTS), Pattern(YOUTU_WORDS)],
        ignore_merges: true,
        add_bos: false,
        composes: false,
    },
    kind(
        &["falcon"],
        &[
            Pattern(FALCON_PUNCTUATION),
            Pattern(GPT2),
            Pattern("[0-9][0-9][0-9]"),
        ],
    ),
    kind(
        &[
            "starcoder",
            "refact",
            "command-r",
            "smollm",
            "codeshell",
            "exaone",
            "minerva",
            "minerva-7b",
            "mellum2",
        ],
        DIGIT_THEN_GPT2,
    ),
    kind(
        &[
            "gpt2",
            "gpt-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "phi-2",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "modern-bert",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
        ],
        &[Pattern(GPT2)],
    ),
    kind(&["jais2", "jais-2"], &[Pattern(JAIS2)]),
    Kind {
        names: &["qwen2"],
        steps: &[Pattern(QWEN2)],
        ignore_merges: false,
        add_bos: false,
        composes: true,
    },
    kind(
        &[
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
            "megrez",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
        ],
        &[Pattern(QWEN2)],
    ),
    Kind {
        names: &["qwen35"],
        steps: &[Pattern(QWEN35)],
        ignore_merges: false,
        add_bos: false,
        composes: true,
    },
    kind(&["ufakzeka"], &[Pattern(UFAKZEKA)]),
    kind(
        &[
            "dbrx",
            "smaug",
            "smaug-bpe",
            "chatglm",
            "chatglm-bpe",
            "glm4",
        ],
        &[Pattern(LLAMA3)],
    ),
    kind(
        &["bloom", "poro", "poro-chat", "gpt3-finnish"],
        &[Pattern(BLOOM)],
    ),
    kind(&["viking"], &[Pattern(BLOOM), Pattern(r"\p{N}")]),
    Kind {
        names: &["tekken"],
        steps: &[Pattern(TEKKEN)],
        ignore_merges: true,
        add_bos: true,
        composes: false,
    },
    Kind {
        names: &["chameleon"],
        steps: &[
            Pattern("<sentinel:[0-9]+>"),
            Pattern("(?:IMGIMG)[A-I]{1,4}Z"),
            Pattern(r"[\t\n]|    |  "),
            Pattern(r"\p{N}"),
            Pattern(r"[\p{P}!-/:-@\[-`{-~]"),
            Pattern(GPT2),
        ],
        ignore_merges: false,
        add_bos: true,
        composes: false,
    },
    kind(
        &[
            "gpt4o",
            "gpt-4o",
            "llama4",
            "minimax-m2",
            "kanana2",
            "talkie",
        ],
        &[Pattern(GPT4O)],
    ),
    Kind {
        names: &["granite-embed-multi-97m"],
        steps: &[Pattern(GPT4O)],
        ignore_merges: true,
        add_bos: false,
        composes: false,
    },
    kind(
        &["tiny-aya", "tiny_aya", "cohere2moe"],
        &[
            DigitGroups {
                before_boundary: true,
            },
            Pattern(GPT4O),
        ],
    ),
    kind(&["kimi-k2"], &[Pattern(KIMI_K2)]),
    kind(
        &["superbpe"],
        &[
            Pattern(r"\p{N}+"),
            DigitGroups {
                before_boundary: false,
            },
        ],
    ),
    kind(
        &["bailingmoe", "bailingmoe2", "llada-moe"],
        &[Pattern(BAILING)],
    ),
    kind(&["seed-coder"], &[Pattern(SEED_CODER)]),
    kind(
        &["afmoe"],
        &[
            DigitGroups {
                before_boundary: false,
            },
            Pattern(AFMOE_SCRIPTS),
            Pattern(DEEPSEEK3_WORDS),
        ],
    ),
    kind(&["exaone-moe"], &[Pattern(EXAONE_MOE)]),
    Kind {
        names: &["minicpm5"],
        steps: &[Pattern(r"\p{N}{1,3}"), Pattern(MINICPM5)],
        ignore_merges: true,
        add_bos: false,
        composes: false,
    },
];

/// A step ready to run.
#[derive(Debug)]
enum Cutter {
    Pattern {
        regex: Regex,
        white_space: WhiteSpace,
    },
    DigitGroups {
        before_boundary: bool,
    },
}

/// What becomes of the last character of white space before a word.
///
/// Most patterns end in `\s+(?!\S)|\s+`: it is left for the word. The look-ahead is done here, not in the
/// pattern: without it no pattern needs backtracking, whose stack a long run of spaces would exhaust.
#[derive(Clone, Copy, Debug, PartialEq)]
enum WhiteSpace {
    /// The pattern says so itself, or has nothing to say.
    AsMatched,
    LeaveLast,
    /// It is left, unless a line ends there: `\s*[\r\n]+` has matched then.
    LeaveLastInLine,
}

const LOOK_AHEAD: &str = r"|\s+(?!\S)|\s+";

/// Cuts text into words.
#[derive(Debug)]
pub(crate) struct PreTokenizer {
    cutters: Vec<Cutter>,
    pub(crate) ignore_merges: bool,
    pub(crate) add_bos: bool,
    pub(crate) composes: bool,
}

impl PreTokenizer {
    /// The pre-tokenizer that `tokenizer.ggml.pre` calls `name`; the empty name is "default".
    pub(crate) fn named(name: &str) -> Result<Self> {
        let wanted = if name.is_empty() { "default" } else { name };
        let kind = KINDS
            .iter()
            .find(|kind| kind.names.contains(&wanted))
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::NotAvailable,
                    format!("unknown pre-tokenizer '{}'", shortened(name)),
                )
            })?;
        let cutters = kind.steps.iter().map(compile).collect::<Result<Vec<_>>>()?;
        Ok(PreTokenizer {
            cutters,
            ignore_merges: kind.ignore_merges,
            add_bos: kind.add_bos,
            composes: kind.composes,
        })
    }

    /// The words of `text`, in order; together they are the whole of it.
    pub(crate) fn split(&self, text: &str) -> Result<Vec<Range<usize>>> {
        let mut pieces = Vec::new();
        if !text.is_empty() {
            pieces.push(0..text.len());
        }
        for cutter in &self.cutters {
            let mut next = Vec::with_capacity(pieces.len() * 2);
            for piece in pieces {
                cutter.cut(text, piece, &mut next)?;
            }
            pieces = next;
        }
        Ok(pieces)
    }
}

/// Every name that [`Vocabulary::pre`](super::Vocabulary::pre) may have, aliases included.
pub fn pre_tokenizer_names() -> impl Iterator<Item = &'static str> {
    KINDS.iter().flat_map(|kind| kind.names.iter().copied())
}

fn compile(step: &Step) -> Result<Cutter> {
    Ok(match *step {
        DigitGroups { before_boundary } => Cutter::DigitGroups { before_boundary },
        Pattern(pattern) => {
            let (pattern, white_space) = match pattern.strip_suffix(LOOK_AHEAD) {
                None => (pattern.to_owned(), WhiteSpace::AsMatched),
                Some(words) if words.contains(r"\s*[\r\n]") => {
                    (format!(r"{words}|\s+"), WhiteSpace::LeaveLastInLine)
                }
                Some(words) => (format!(r"{words}|\s+"), WhiteSpace::LeaveLast),
            };
            let regex = Regex::new(&pattern).map_err(|error| {
                Error::new(
                    ErrorKind::Internal,
                    format!("pre-tokenizer pattern does not compile: {error}"),
                )
            })?;
            Cutter::Pattern { regex, white_space }
        }
    })
}

impl WhiteSpace {
    /// Where a match of `text[begin..end]` ends.
    fn end(self, text: &str, begin: usize, end: usize) -> usize {
        let found = &text[begin..end];
        let Some(last) = found.chars().next_back().filter(|c| c.is_whitespace()) else {
            return end;
        };
        let begin_of_last = end - last.len_utf8();
        let left = match self {
            WhiteSpace::AsMatched => false,
            WhiteSpace::LeaveLast => true,
            WhiteSpace::LeaveLastInLine => !matches!(last, '\r' | '\n'),
        };
        let word_follows = text[end..]
            .chars()
            .next()
            .is_some_and(|c| !c.is_whitespace());
        if left && word_follows && begin_of_last > begin && found.chars().all(char::is_whitespace) {
            begin_of_last
        } else {
            end
        }
    }
}

impl Cutter {
    /// Appends the pieces of `text[piece]`, none of them empty.
    fn cut(&self, text: &str, piece: Range<usize>, out: &mut Vec<Range<usize>>) -> Result<()> {
        match self {
            Cutter::Pattern { regex, white_space } => {
                cut_by_pattern(regex, *white_space, text, piece, out)
            }
            Cutter::DigitGroups { before_boundary } => {
                group_digits(text, piece, *before_boundary, out);
                Ok(())
            }
        }
    }
}

fn cut_by_pattern(
    regex: &Regex,
    white_space: WhiteSpace,
    text: &str,
    piece: Range<usize>,
    out: &mut Vec<Range<usize>>,
) -> Result<()> {
    let slice = &text[piece.clone()];
    let mut done = 0;
    while done < slice.len() {
        let found = regex.find_from_pos(slice, done).map_err(|error| {
            Error::new(
                ErrorKind::LimitExceeded,
                format!(
                    "cutting {} bytes of text into words failed: {error}",
                    slice.len()
                ),
            )
        })?;
        // No pattern matches nothing.
        let Some(found) = found.filter(|found| found.end() > done) else {
            break;
        };
        if found.start() > done {
            out.push(piece.start + done..piece.start + found.start());
        }
        done = white_space.end(slice, found.start(), found.end());
        out.push(piece.start + found.start()..piece.start + done);
    }
    if done < slice.len() {
        out.push(piece.start + done..piece.end);
    }
    Ok(())
}

/// Groups each run of digits by three from the right ("1234567" is 1, 234, 567).
fn group_digits(
    text: &str,
    piece: Range<usize>,
    before_boundary: bool,
    out: &mut Vec<Range<usize>>,
) {
    let slice = &text[piece.clone()];
    let mut done = 0;
    let mut chars = slice.char_indices().peekable();
    while let Some(&(run_start, first)) = chars.peek() {
        if !first.is_numeric() {
            chars.next();
            continue;
        }
        let mut starts = Vec::new();
        while let Some(&(at, c)) = chars.peek()
            && c.is_numeric()
        {
            starts.push(at);
            chars.next();
        }
        let run_end = chars.peek().map_or(slice.len(), |&(at, _)| at);
        let word_follows = chars
            .peek()
            .is_some_and(|&(_, c)| c.is_alphanumeric() || c == '_');
        if before_boundary && word_follows {
            continue;
        }
        if run_start > done {
            out.push(piece.start + done..piece.start + run_start);
        }
        let first_group = starts.len() % 3;
        let mut begin = run_start;
        for group in (first_group..starts.len()).step_by(3) {
            if starts[group] > begin {
                out.push(piece.start + begin..piece.start + starts[group]);
            }
            begin = starts[group];
        }
        out.push(piece.start + begin..piece.start + run_end);
        done = run_end;
    }
    if done < slice.len() {
        out.push(piece.start + done..piece.end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<'a>(pre: &str, text: &'a str) -> Vec<&'a str> {
        let pre = PreTokenizer::named(pre).unwrap();
        let ranges = pre.split(text).unwrap();
        ranges.into_iter().map(|range| &text[range]).collect()
    }

    #[test]
    fn every_name_compiles_and_loses_nothing() {
        let text = "Hello  World's 12345 \n\n\tçà́ 日本語 한국어 ½ x_1 ⅷ🙂\r\n  end  ";
        let mut seen = std::collections::HashSet::new();

        for name in pre_tokenizer_names() {
            assert!(seen.insert(name), "{name} is listed twice");
            assert_eq!(words(name, text).concat(), text, "{name}");
        }
    }

    #[test]
    fn unknown_name_is_named() {
        let error = PreTokenizer::named("wishful").unwrap_err();

        assert_eq!(error.message(), "unknown pre-tokenizer 'wishful'");
    }

    #[test]
    fn gpt2_keeps_one_space_with_the_word() {
        assert_eq!(
            words("gpt2", "I'll  go,\n now 123"),
            ["I", "'ll", " ", " go", ",", "\n", " now", " 123"]
        );
    }

    #[test]
    fn long_runs_are_no_error() {
        for run in [" ", "\n", " \n", "\t", "a", "1", "!", "é"] {
            let text = format!("{}x", run.repeat(1 << 17));
            for name in ["gpt2", "llama3", "deepseek3", "gpt4o", "default", "kimi-k2"] {
                assert_eq!(
                    words(name, &text).concat().len(),
                    text.len(),
                    "{name} {run:?}"
                );
            }
        }
    }

    #[test]
    fn digits_group_from_the_right() {
        assert_eq!(words("afmoe", "1234567"), ["1", "234", "567"]);
        assert_eq!(words("superbpe", "a1234 b"), ["a", "1", "234", " b"]);
        assert_eq!(words("tiny-aya", "12345"), ["12", "345"]);
        assert_eq!(words("tiny-aya", "12345x"), ["123", "45", "x"]);
    }

    #[test]
    fn llama3_takes_three_digits_and_qwen2_one() {
        assert_eq!(words("llama3", "1234"), ["123", "4"]);
        assert_eq!(words("qwen2", "1234"), ["1", "2", "3", "4"]);
    }

    #[test]
    fn tekken_and_gpt4o_cut_where_case_changes() {
        assert_eq!(words("tekken", "HelloWorld's"), ["Hello", "World", "'s"]);
        assert_eq!(words("gpt4o", "HelloWorld's"), ["Hello", "World's"]);
    }
}
