#!/usr/bin/env python3
"""Writes tests/data/tokens: texts, and the ids that the reference tokenizers give for them.

Run: python tools/golden/tokens.py MODEL.gguf
     (needs gguf, llama-cpp-python, mistral-common with sentencepiece, dashscope with tiktoken, regex)

  corpus.json         the texts
  smollm2.json        ids by llama-cpp-python with the vocabulary of MODEL, which is SmolLM2's
  pre_tokenizers.json ids for each of NAMES with a made-up vocabulary (pair_merges): by llama-cpp-python,
                      or by the patterns of ORIGINAL where that only approximates them
  tekken.json, sentencepiece.json   vocabularies and ids of mistral-common
  qwen2.json                        vocabulary and ids of dashscope

The last three hold reduced vocabularies: the tokens that occur somewhere in the corpus, with their ids.
Merging can only ever make a token that occurs in its text, so leaving the others out changes no id.
"""

import base64
import ctypes
import importlib.util
import json
import pathlib
import sys
import tempfile
import unicodedata

import gguf
import llama_cpp
import regex

TARGET = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "tokens"

CORPUS = [
    "",
    " ",
    "  ",
    "a",
    "Hello, world!",
    " Hello, world! ",
    "The quick brown fox jumps over the lazy dog, and it's what they'll do; we've seen that I'm right, "
    "you'd agree, they're SURE IT'S fine.",
    "Don't DON'T don\u2019t 'tis 'Twas rock'n'roll",
    "1 12 123 1234 12345 123456 1234567 3.14159 -2.5e-10 1,000,000.00 0x1F 50% $9.99 v1.2.3 x2 2x 12½ ⅷ ²³",
    "tabs\tand\t\ttwo, \n newline\n\n two \r\n windows \r\n\r\n  end  ",
    "one two  three   four    five     six      seven       eight\n  in\n    dent\n\t\tmore \n \n  \n",
    " " * 40 + "x" + " " * 9 + "\n" * 7 + "\t" * 5 + "y" + " " * 17,
    "def fibonacci(n: int) -> list[int]:\n    \"\"\"The first n numbers.\"\"\"\n    a, b = 0, 1\n"
    "    out = []\n    while len(out) < n:\n        out.append(a)\n        a, b = b, a + b\n    return out\n",
    "#include <stdio.h>\nint main(void) {\n\tfor (size_t i = 0; i < 10; ++i) { printf(\"%zu\\n\", i*i); }\n"
    "\treturn 0; // done\n}\n",
    "fn parseHTTPResponse_v2(someValue: &mut Vec<u8>) -> Result<(), Box<dyn Error>> { todo!() }",
    "SELECT id, COUNT(*) FROM users WHERE name LIKE '%o''brien%' AND age >= 21 GROUP BY id;",
    "<div class=\"a-b_c\" id='x'>&nbsp;&amp; text</div> <!-- note --> {\"key\": [1, 2.5, null, true]}",
    "https://example.com/path/to?query=1&b=%20#frag mail@example.org C:\\Users\\me ~/dir/../file.tar.gz",
    "!!! ??? ... --- === +++ *** ### $$$ %%% ^^^ &&& ((( ))) [[[ ]]] {{{ }}} <<< >>> ||| ~~~ `` '' \"\" ;; :: ,, //",
    "a+b=c; a-b; a*b; a/b; a^b; a|b; a&b; a~b; a<b>c; (a)[b]{c} @d #e $f `g` 'h' \"i\"",
    "Größe, Straße, Ärger, Übermut und öffentliche Verkehrsmittel kosten 3,50 €.",
    "Où est la bibliothèque ? L’été dernier, j’ai mangé des crêpes à l’œuf – délicieux !",
    "El niño comió jalapeños; ¿cuántos? ¡Muchísimos! El pingüino también.",
    "O coração não está à venda; a ação é às três. Il perché è già così.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy. Zażółć gęślą jaźń. Árvíztűrő tükörfúrógép.",
    "İstanbul'da ılık bir akşam, ığdır. Şeker çok güzel. Ðað er íslenska þýðing.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Їжак і ґава, ў Мінску.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ΑΘΗΝΑ Ελλάδα.",
    "זה משפט בעברית, עִם נִקּוּד. هذه جملة باللغة العربية، مع تَشْكِيل؟ این یک جملهٔ فارسی است.",
    "यह हिन्दी में एक वाक्य है। क्या हाल है? বাংলা ভাষায় একটি বাক্য। தமிழ் மொழி. తెలుగు భాష.",
    "ภาษาไทยไม่มีช่องว่าง ລາວ ភាសាខ្មែរ မြန်မာဘာသာ",
    "我能吞下玻璃而不伤身体。你好,世界!今天是2024年5月20日。繁體中文測試「引號」、頓號。",
    "私はガラスを食べられます。ひらがなカタカナ漢字ﾊﾝｶｸ、テスト123。",
    "나는 유리를 먹을 수 있어요. 안녕하세요 세계! ㄱㄴㄷ 한국어",
    "Tiếng Việt có dấu: Đây là một câu. ქართული ენა. Հայերեն լեզու. አማርኛ ቋንቋ. ᏣᎳᎩ. ᠮᠣᠩᠭᠣᠯ.",
    "emoji 🙂🎉 👩‍👩‍👧‍👦 👍🏽 🇩🇪🇫🇷 ❤️ ☃ ✅ 1️⃣ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 end",
    "maths ∑∫√∞ ≠ ≤ ≥ ± × ÷ → ⇒ ∀x∈ℝ 𝒜𝔅ℂ αβγ Ω µm °C ™ © ® § ¶ † • … — – « » „ “ ” ‘ ’ ‹ ›",
    "spaces\u00a0nbsp\u2003em\u2009thin\u3000wide\u200bzero\u200djoin\ufeffbom\u2028line\u2029para\u0085nel\u000bvt\u000cff",
    "control \u0000 \u0001 \u0007 \u001b[31m \u007f \u0080 \u009f end",
    "combining e\u0301 a\u030a n\u0303 o\u0308 q\u0307\u0323 \u0301start \u212b \ufb01 \u1e9e",
    "rare \U0001f9ff \U00010330\U00010331 \U0001d4d0 \U000e0001 \uffff \ue000 \U0010ffff \U00020000\U0002a6d6",
    "HelloWorld helloWorld HELLOworld iPhone XMLHttpRequest ÉcoleÀParis straßeGROSS ǅungla ʰʷ ªº",
    "<|im_start|>user\nWhat is <|im_end|> for?<|im_end|>\n<|im_start|>assistant\n",
    "text<|endoftext|>more <|im_start|> spaced <|im_end|>  \n<|im_start|><|im_end|>",
    "<s>[INST] Hi [/INST] Hello</s> <unk> <0x0A> [AVAILABLE_TOOLS] <|not_a_token|> <|im_start <||>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbb abababababababababababab",
    "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen antidisestablishmentarianism",
    "\u2581already\u2581marked \u2581 text\u2581",
    "MixedЯзыки in一行with日本語andعربيnumbers١٢٣४५६７８９",
    "a b c d e f g A B C 가 나 다 e\u0301 e\u0301 x",
    "IMGIMGABCZ <sentinel:12> (a|b).c,d!e?f",
    "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "'", "'s", " 's", "\u00a0", "é", "日", "🙂", "123", "1234",
]  # fmt: skip

# One name for each way of splitting that llama-cpp-python knows under the same or another name.
NAMES = {
    "default": "default", "llama3": "llama-bpe", "deepseek-llm": "deepseek-llm",
    "deepseek-coder": "deepseek-coder", "deepseek3": "deepseek-v3", "falcon": "falcon", "mpt": "mpt",
    "starcoder": "starcoder", "gpt2": "gpt-2", "refact": "refact", "command-r": "command-r",
    "stablelm2": "stablelm2", "qwen2": "qwen2", "qwen35": "qwen35", "olmo": "olmo", "dbrx": "dbrx",
    "smaug": "smaug-bpe", "poro": "poro-chat", "chatglm": "chatglm-bpe", "viking": "viking", "jais": "jais",
    "jais2": "jais-2", "tekken": "tekken", "smollm": "smollm", "codeshell": "codeshell", "bloom": "bloom",
    "gpt3-finnish": "gpt3-finnish", "exaone": "exaone", "exaone-moe": "exaone-moe",
    "chameleon": "chameleon", "minerva": "minerva-7b", "gpt4o": "gpt-4o", "superbpe": "superbpe",
    "trillion": "trillion", "bailingmoe": "bailingmoe", "llama4": "llama4", "pixtral": "pixtral",
    "seed-coder": "seed-coder", "hunyuan": "hunyuan", "hunyuan-dense": "hunyuan-dense",
    "kimi-k2": "kimi-k2", "grok-2": "grok-2", "granite-docling": "granite-docling",
    "minimax-m2": "minimax-m2", "afmoe": "afmoe", "solar-open": "solar-open", "youtu": "youtu",
    "tiny-aya": "tiny_aya", "joyai": "joyai-llm",
}  # fmt: skip

# Names whose tokenizers put text into Unicode's composed form first, which llama.cpp leaves out.
NORMALIZED = {"qwen2", "qwen35"}

CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def cased(upper: str, lower: str, after: str, rest: str) -> str:
    """Words that end where case changes, then `rest`."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        f"{lead}{upper}*{lower}+{after}|{lead}{upper}+{lower}*{after}|{rest}"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


GPT4O = cased(UPPER, LOWER, CONTRACTION, r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*")
# Splits that llama.cpp approximates (case only of ASCII letters, no combining marks, white space
# outside ASCII as one character): the patterns of the models' own tokenizer.json, for module `regex`.
ORIGINAL = {
    "deepseek-llm": [
        "[\r\n]",
        "\\s?[A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293"
        "\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a"
        "\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
        "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf"
        "\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
        "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
        "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"
        "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
        "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d"
        "\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184"
        "\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
        "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
        "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
        "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
        "\U0001e900-\U0001e943]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
        r"\p{N}+",
    ],
    "deepseek-coder": [
        "[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}",
    ],
    "tekken": [cased(UPPER, LOWER, "", r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*")],
    "gpt4o": [GPT4O],
    "llama4": [GPT4O],
    "minimax-m2": [GPT4O],
    "tiny-aya": [r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O],
    "kimi-k2": [
        r"[\p{Han}]+|"
        + cased(
            UPPER[:-1] + r"&&[^\p{Han}]]", LOWER[:-1] + r"&&[^\p{Han}]]", CONTRACTION,
            r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*",
        )
    ],
    "youtu": [
        "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
        "|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        cased(UPPER, LOWER, CONTRACTION, r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*"),
    ],
}  # fmt: skip


def rows(values) -> str:
    """A JSON list with one element a line."""
    lines = (json.dumps(value, ensure_ascii=True, separators=(",", ":")) for value in values)
    return "[\n" + ",\n".join(lines) + "\n]"


def write(name: str, **parts) -> None:
    body = ",\n".join(f"{json.dumps(key)}: {text}" for key, text in parts.items())
    (TARGET / name).write_text("{\n" + body + "\n}\n", encoding="ascii")


class Llama:
    """The vocabulary of a GGUF file in llama-cpp-python."""

    def __init__(self, path: str):
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        assert self.model, path
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)

    def ids(self, text: str, add_special: bool = False, parse_special: bool = False) -> list[int]:
        data = text.encode("utf-8", "surrogatepass")
        room = (llama_cpp.llama_token * (len(data) + 8))()
        count = llama_cpp.llama_tokenize(
            self.vocabulary, data, len(data), room, len(room), add_special, parse_special
        )
        assert count >= 0
        return room[:count]

    def close(self) -> None:
        llama_cpp.llama_model_free(self.model)


def byte_characters() -> list[str]:
    """The printable character of each byte in byte-level vocabularies."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(byte if byte in printable else next(rest)) for byte in range(256)]


def pair_merges() -> list[tuple[str, str]]:
    """A vocabulary that shows where words end: all pairs of bytes that occur in the corpus, and runs.

    Whatever two bytes are neighbours in a word may merge, in an order that means nothing.
    tests/text_tokens.rs builds the same.
    """
    characters = byte_characters()
    data = [text.encode() for text in CORPUS]
    pairs = {(a << 8) | b for text in data for a, b in zip(text, text[1:])}
    ordered = sorted(pairs, key=lambda pair: pair * 2654435761 % (1 << 32))
    merges = [(characters[pair >> 8], characters[pair & 255]) for pair in ordered]
    return merges + [(characters[byte] * half,) * 2 for half in (2, 4, 8, 16, 32) for byte in b" \n\t"]


def write_pairs(pre: str, path: str) -> None:
    """A file with nothing but that vocabulary, under a pre-tokenizer."""
    merges = pair_merges()
    tokens = byte_characters() + [a + b for a, b in merges]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokens))
    writer.add_token_merges([f"{a} {b}" for a, b in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def cut(patterns: list[str], text: str) -> list[str]:
    """Words by the definition: each pattern cuts what the patterns before it left."""
    pieces = [text]
    for pattern in patterns:
        cut_finer = []
        for piece in pieces:
            done = 0
            for match in regex.finditer(pattern, piece, flags=regex.V1):
                cut_finer += [piece[done : match.start()], match.group()]
                done = match.end()
            cut_finer.append(piece[done:])
        pieces = [piece for piece in cut_finer if piece]
    return pieces


def ids_of_pairs(patterns: list[str], text: str) -> list[int]:
    """Ids with that vocabulary, merged the plain way."""
    characters, merges = byte_characters(), pair_merges()
    ranks = {merge: rank for rank, merge in enumerate(merges)}
    ids = {token: i for i, token in enumerate(characters + [a + b for a, b in merges])}
    out = []
    for word in cut(patterns, text):
        parts = [characters[byte] for byte in word.encode()]
        while True:
            found = [(ranks[pair], i) for i, pair in enumerate(zip(parts, parts[1:])) if pair in ranks]
            if not found:
                break
            _, at = min(found)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        out += [ids[part] for part in parts]
    return out


def make_smollm2(model: str) -> None:
    llama = Llama(model)
    ways = [(False, False), (True, True)]
    write("smollm2.json", **{
        f"add_special={int(add)},parse_special={int(parse)}": rows(llama.ids(text, add, parse) for text in CORPUS)
        for add, parse in ways
    })  # fmt: skip
    llama.close()


def make_pre_tokenizers() -> None:
    parts, seen = {}, {}
    for name, theirs in NAMES.items():
        texts = [unicodedata.normalize("NFC", t) if name in NORMALIZED else t for t in CORPUS]
        if name in ORIGINAL:
            text = rows(ids_of_pairs(ORIGINAL[name], text) for text in texts)
        else:
            with tempfile.TemporaryDirectory() as folder:
                path = f"{folder}/vocabulary.gguf"
                write_pairs(theirs, path)
                llama = Llama(path)
                text = rows(llama.ids(text) for text in texts)
                llama.close()
        same = seen.setdefault(text, name)
        parts[name] = text if same == name else json.dumps(same)
    write("pre_tokenizers.json", **parts)


def pair_of(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The last merge that makes `token`: merge its bytes by rank until two parts are left."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [(ranks.get(a + b, 1 << 60), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))]
        rank, at = min(pairs)
        assert rank < ranks[token], token
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


def reduced_bpe(ranks: dict[bytes, int], offset: int, texts: list[str]) -> dict[str, str]:
    """Tokens, original ids and merges of the part of a tiktoken vocabulary that occurs in the texts."""
    data = [text.encode() for text in texts]
    kept = [t for t in sorted(ranks, key=ranks.get) if len(t) == 1 or any(t in d for d in data)]
    characters = byte_characters()
    text_of = lambda token: "".join(characters[byte] for byte in token)
    merges = [" ".join(map(text_of, pair_of(t, ranks))) for t in kept if len(t) > 1]
    return {
        "tokens": json.dumps([text_of(t) for t in kept]),
        "ids": json.dumps([ranks[t] + offset for t in kept], separators=(",", ":")),
        "merges": json.dumps(merges),
    }


def data_folder(package: str) -> pathlib.Path:
    return pathlib.Path(importlib.util.find_spec(package).submodule_search_locations[0])


def make_tekken() -> None:
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    path = data_folder("mistral_common") / "data" / "tekken_240911.json"
    tekken = Tekkenizer.from_file(str(path))
    vocabulary = json.loads(path.read_text())
    size = vocabulary["config"]["default_vocab_size"] - tekken.num_special_tokens
    ranks = {base64.b64decode(t["token_bytes"]): t["rank"] for t in vocabulary["vocab"][:size]}
    expected = [tekken.encode(text, bos=False, eos=False) for text in CORPUS]
    write("tekken.json", **reduced_bpe(ranks, tekken.num_special_tokens, CORPUS), expected=rows(expected))


def make_qwen2() -> None:
    from dashscope.tokenizers.qwen_tokenizer import QwenTokenizer

    path = data_folder("dashscope") / "resources" / "qwen.tiktoken"
    qwen = QwenTokenizer(str(path))
    lines = (line.split() for line in path.read_bytes().splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    # Its own encode() takes markers in any text for special tokens; these texts are plain.
    plain = [unicodedata.normalize("NFC", text) for text in CORPUS]
    expected = [qwen._tokenizer.encode(text, disallowed_special=()) for text in plain]
    write("qwen2.json", **reduced_bpe(ranks, 0, plain), expected=rows(expected))


def make_sentencepiece() -> None:
    import sentencepiece

    path = data_folder("mistral_common") / "data" / "mistral_instruct_tokenizer_240323.model.v3"
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    marked = ["\u2581" + text.replace(" ", "\u2581") for text in CORPUS]
    kept = [
        i for i in range(model.get_piece_size())
        if model.is_byte(i) or model.is_control(i) or model.is_unknown(i)
        or any(model.id_to_piece(i) in text for text in marked)
    ]  # fmt: skip
    kind = lambda i: 2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else 1
    write(
        "sentencepiece.json",
        tokens=json.dumps([model.id_to_piece(i) for i in kept]),
        ids=json.dumps(kept, separators=(",", ":")),
        scores=json.dumps([model.get_score(i) for i in kept], separators=(",", ":")),
        types=json.dumps([kind(i) for i in kept], separators=(",", ":")),
        expected=rows(model.encode(text) for text in CORPUS),
    )


def main() -> int:
    TARGET.mkdir(parents=True, exist_ok=True)
    llama_cpp.llama_log_set(SILENT, None)
    (TARGET / "corpus.json").write_text(rows(CORPUS) + "\n", encoding="ascii")
    make_smollm2(sys.argv[1])
    make_pre_tokenizers()
    make_tekken()
    make_qwen2()
    make_sentencepiece()
    return 0


SILENT = llama_cpp.llama_log_callback(lambda *_: None)

if __name__ == "__main__":
    sys.exit(main())
