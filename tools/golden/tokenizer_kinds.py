#!/usr/bin/env python3
"""Writes tests/data/tokens/kinds.json: small vocabularies of several kinds of tokenizers, and the ids and
texts that their own implementations give for the texts of corpus.json.

Run: python tools/golden/tokenizer_kinds.py   (needs sentencepiece and tokenizers)

The vocabularies are trained on those texts. Unigram and SentencePiece BPE come from `sentencepiece`,
WordPiece and character BPE as Gemma 4 has it from `tokenizers`.
"""

import base64
import io
import json
import pathlib
import sys

import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "tokens"

# Text that looks like control and user-defined tokens, at the beginning, inside words and after spaces.
MARKERS = [
    "<ctl>", "a<ctl>b", "<s>", "</s>", "<unk>", "x <s> y</s>", "<ud>", " <ud>", "a<ud>b", "a <ud> b <ud><ud>", "<ud> a",
    "<u d>", "two words", "say two words twice: two  words", "<0x0A>", "<ctl><ud><s>", "<ud", "ud>", "  <ud>  ",
]  # fmt: skip
# What SentencePiece's normalization is for, in a map small enough to keep.
RULES = {
    "\t": " ", "\n": " ", "\r": " ", "\u00a0": " ", "\u3000": " ", "\u2003": " ", "\u200b": "", "\ufeff": "", "\u00ad": "",
    "\ufb01": "fi", "\u212b": "\u00c5", "\u00bd": "1\u20442", "\u2122": "TM", "\u2026": "...", "\u1e9e": "SS",
    "e\u0301": "\u00e9", "a\u030a": "\u00e5", "n\u0303": "\u00f1", "o\u0308": "\u00f6", "q\u0307\u0323": "q\u0323\u0307",
    **{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},
}  # fmt: skip


def corpus() -> list[str]:
    return json.loads((DATA / "corpus.json").read_text()) + MARKERS


def training_texts() -> list[str]:
    """Without characters that a trainer refuses."""
    return [line for text in corpus() for line in text.replace("\0", "").splitlines() if line.strip()] * 4


def train(**options) -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(training_texts()), model_writer=model, minloglevel=2, num_threads=1,
        hard_vocab_limit=False, character_coverage=0.98, **options,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


UNUSED = 5  # a piece's type


def with_unused(processor) -> sentencepiece.SentencePieceProcessor:
    """The same model, every third of whose pieces of several characters is unused: encoding splits them again."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(processor.serialized_model_proto())
    normal = [piece for piece in proto.pieces if piece.type == 1 and len(piece.piece) > 1]
    for piece in normal[::3]:
        piece.type = UNUSED
    return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())


def write_rules(path: pathlib.Path) -> None:
    code_points = lambda text: " ".join(f"{ord(c):X}" for c in text)
    path.write_text("".join(f"{code_points(a)}\t{code_points(b)}\n" for a, b in RULES.items()))


def of_sentencepiece(kind: str, processor, **keys) -> dict:
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(processor.serialized_model_proto())
    normalizer = proto.normalizer_spec
    return {
        "model": kind,
        "tokens": [piece.piece for piece in proto.pieces],
        "scores": [piece.score for piece in proto.pieces],
        "types": [piece.type for piece in proto.pieces],
        "add_space_prefix": normalizer.add_dummy_prefix,
        "remove_extra_whitespaces": normalizer.remove_extra_whitespaces,
        "charsmap": base64.b64encode(normalizer.precompiled_charsmap).decode(),
        "unknown": processor.unk_id(),
        **keys,
        "cases": [[text, ids := processor.encode(text), decoded(processor, text, ids)] for text in corpus()],
    }


def decoded(processor, text: str, ids: list[int]) -> str | None:
    """Without unknown tokens, which sentencepiece prints as U+2047; None for text that has marks itself."""
    return None if "\u2581" in text else processor.decode([id for id in ids if id != processor.unk_id()])


def of_tokenizers(kind: str, tokenizer, tokens: list[str], types: list[int], unknown: int, **keys) -> dict:
    cases = []
    for text in corpus():
        # Converters write "##\u2581" as "\u2581", which then begins a word.
        if kind == "bert" and "\u2581" in text:
            continue
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        # "<|im_end|>" becomes one token here, which is hidden when it is decoded: it ends a turn.
        is_hidden = kind == "gemma4" and "<|im_end|>" in text
        cases.append([text, ids, None if is_hidden else tokenizer.decode(ids, skip_special_tokens=True)])
    return {"model": kind, "tokens": tokens, "types": types, "unknown": unknown, **keys, "cases": cases}


def word_piece(lowercase: bool, strip_accents: bool | None) -> dict:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    markers = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=700, special_tokens=markers, show_progress=False, limit_alphabet=300)
    tokenizer.train_from_iterator(training_texts(), trainer)
    vocab = tokenizer.get_vocab()
    plain = sorted(vocab, key=vocab.get)
    # As converters write them.
    marked = lambda token: token[2:] if token.startswith("##") else "\u2581" + token
    tokens = [token if token in markers else marked(token) for token in plain]
    types = [2 if token == "[UNK]" else 3 if token in markers else 1 for token in plain]
    return of_tokenizers(
        "bert", tokenizer, tokens, types, vocab["[UNK]"],
        normalizer_lowercase=lowercase, normalizer_strip_accents=strip_accents,
    )  # fmt: skip


def gemma4() -> dict:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    markers = ["<pad>", "<eos>", "<bos>", "<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=markers, show_progress=False, limit_alphabet=200)
    tokenizer.train_from_iterator([text.replace("\0", "") for text in corpus()] * 4, trainer)
    state = json.loads(tokenizer.to_str())
    vocab, merges = state["model"]["vocab"], state["model"]["merges"]
    # Byte tokens are no text: without the trainer's list of added tokens, which are found anywhere.
    state["added_tokens"] = []
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokens = sorted(vocab, key=vocab.get)
    types = [3 if id < 3 else 2 if id == 3 else 6 if id < 260 else 1 for id in range(len(tokens))]
    return of_tokenizers("gemma4", tokenizer, tokens, types, 3, merges=[f"{a} {b}" for a, b in merges])


def main() -> int:
    rules = DATA / "rules.tsv"
    write_rules(rules)
    symbols = {"user_defined_symbols": ["<ud>", "<ud2>"], "control_symbols": ["<ctl>"]}
    kinds = {
        "bpe with user-defined tokens": of_sentencepiece(
            "llama",
            train(model_type="bpe", vocab_size=900, byte_fallback=True, normalization_rule_name="identity",
                  remove_extra_whitespaces=False, **symbols),
        ),
        "bpe without prefix": of_sentencepiece(
            "llama",
            train(model_type="bpe", vocab_size=900, byte_fallback=True, normalization_rule_name="identity",
                  remove_extra_whitespaces=False, add_dummy_prefix=False, **symbols),
        ),
        "bpe with unused pieces": of_sentencepiece(
            "llama",
            with_unused(train(model_type="bpe", vocab_size=900, byte_fallback=True, normalization_rule_name="identity",
                              remove_extra_whitespaces=False, **symbols)),
        ),
        "unigram with unused pieces": of_sentencepiece(
            "t5", with_unused(train(model_type="unigram", vocab_size=700, normalization_rule_tsv=str(rules))),
        ),
        "unigram": of_sentencepiece("t5", train(model_type="unigram", vocab_size=700, normalization_rule_tsv=str(rules))),
        "unigram with bytes": of_sentencepiece(
            "t5",
            train(model_type="unigram", vocab_size=900, byte_fallback=True, normalization_rule_tsv=str(rules),
                  remove_extra_whitespaces=False, **symbols),
        ),
        "unigram without prefix": of_sentencepiece(
            "t5",
            train(model_type="unigram", vocab_size=700, add_dummy_prefix=False, normalization_rule_name="identity", **symbols),
        ),
        "word piece uncased": word_piece(True, None),
        "word piece cased": word_piece(False, None),
        "word piece cased without accents": word_piece(False, True),
        "gemma4": gemma4(),
    }  # fmt: skip
    rules.unlink()
    parts = []
    for name, kind in kinds.items():
        cases = ",\n".join(json.dumps(case, separators=(",", ":")) for case in kind.pop("cases"))
        parts.append(f"{json.dumps(name)}: {json.dumps(kind, separators=(',', ':'))[:-1]},\n\"cases\": [\n{cases}\n]}}")
    (DATA / "kinds.json").write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
