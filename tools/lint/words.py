"""Words and whitespace of every text file.

Unfinished work is not committed as a remark, no path of somebody's machine is, and lines end cleanly. TERMS are
words that this project once used with a private meaning, each with the term that the field uses; where such a word
has its ordinary meaning, ALLOWED says so.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[2]
WORDS = re.compile(r"\b(TODO|FIXME|XXX|HACK|WIP)\b|(?<![\w.])/(work|root|home)/\w")
# Where the words themselves are the subject or the names of crates, and bytes that are no text.
EXEMPT = {"tools/lint/words.py", "Cargo.lock"}
BINARY = {".gguf", ".bin", ".npz", ".npy", ".gz", ".png", ".model"}

# What builds and downloads leave, which git ignores too.
OUTPUTS = re.compile(r"^(\.git|target|build|build-.*|\.cache|\.gpu-pack|\.peer|__pycache__)$")

# Rooms where a word about matrix tiles, steps or attention can be private.
LINEAR = ("cuda/kernels/linear", "cuda/src/llm/ops/cuda")
HOST_LINEAR = ("cuda/src/llm/ops/host/linear", "cuda/src/llm/ops/host/m_tiles")
LINEAR_BENCH = ("cuda/bench/linear", "cuda/bench/host_linear", "cuda/bench/gemm")
TILES = LINEAR + ("cuda/kernels/shared", "cuda/kernels/memory", "cuda/src/llm/quant", "cuda/src/llm/ops",
                  "cuda/tests/kernels", "cuda/tests/llm/quant", "cuda/tests/llm/ops", "cuda/bench", "docs")  # fmt: skip
ATTENTION = ("cuda/kernels/attention", "cuda/kernels/sampling")
KERNELS = ("cuda/kernels", "cuda/src/llm/ops", "cuda/bench")


def name_part(pattern: str) -> str:
    """The pattern as a word of a sentence, or as a part of a name with underscores."""
    return rf"(?<![A-Za-z])(?:{pattern})(?![a-z])".replace(" ", "[ _]")


# (pattern, the field's term, rooms or None for everywhere)
TERMS = [
    # Prose.
    (name_part(r"[Tt](?:ells?|old|elling)"), "report, state, return", None),
    (name_part(r"hang(?:s|ing)? on"), "depends on", None),
    (name_part(r"(?:go|goes|went|going|gone) on"), "continues", None),
    (name_part(r"in vain"), "without success", None),
    (name_part(r"(?:is|are) had|had by"), "can be requested", None),
    (name_part(r"[Bb]eside"), "next to, compared with, besides", None),
    (name_part(r"mend(?:s|ed|ing)?"), "fix", None),
    (name_part(r"anew"), "again", None),
    # Names used in many rooms.
    (r"[Nn]ewcomers?", "new K/V", None),
    (r"[Pp]atience", "spin limit", None),
    (r"[Ss]ettle", "accumulator fence; wait; complete", None),
    (r"[Ii]ngest", "input scatter", None),
    (r"[Ss]lab", "staging buffer", None),
    (r"[Rr]eady.?[Kk]ernel|(?:run|register|add|of)_ready|_ready_", "built-in kernel", None),
    (r"\b[Aa]dopt(?:s|ed|ing)?\b|\badopted_|_adopted", "borrowed", None),
    (r"[Ww]ide_?(?:[Ll]inear|[Ii]nput)", "dequantize + GEMM", None),
    (r"[Ll]ayer_?[Cc]hain|[Cc]hained|[Cc]hain_(?:linear|params|copy)", "persistent fused layers", None),
    (r"(?:[Ww]arpgroup|[Ww]gmma|WGMMA|[Mm]ma|MMA)[ _]?[Pp]roducts?", "MMA, WGMMA", None),
    (r"[Tt]urn_?[Hh]ead", "rotate head", None),
    # Words that are private in some rooms only.
    (r"[Rr]ecords?(?![a-z])", "packed weight tile", TILES),
    (r"(?<![lr.])\b_?[Ss]trips?\b|[Ss]trip_|k?Strip[A-Z]?|_strips?\b", "M-tile of 16 rows", TILES),
    (r"\b[Cc]hunks?\b|[Cc]hunk_|_chunks?\b|k?Chunk[A-Z]", "K-tile", LINEAR + LINEAR_BENCH),
    (r"\b[Ss]lots?\b|[Ss]lot_|_slots?\b|k?Slot[A-Z]", "partial accumulator", LINEAR + HOST_LINEAR + LINEAR_BENCH),
    (r"\b[Ss]lices?\b|[Ss]lice_|_slices?\b|k?Slice[A-Z]", "split-K partition", KERNELS),
    (r"\b[Ss]ections?\b|[Ss]ection_|_sections?\b|k?Section[A-Z]", "grouped-GEMM problem",
     LINEAR + ("cuda/src/llm/ops", "cuda/bench")),
    (r"\b[Ss]hares?\b|[Ss]hare_|_shares?\b|k?Share[A-Z]", "work partition", LINEAR + HOST_LINEAR),
    (r"\b[Uu]nits?\b|[Uu]nit_|_units?\b|k?Unit[A-Z]", "half K-tile, KV page, work item, load width",
     LINEAR + ATTENTION + ("cuda/kernels/memory", "cuda/src/llm/quant", "cuda/src/llm/ops/host",
                           "cuda/bench/linear", "cuda/bench/host_linear")),
    (r"(?<!\w)[Ee]ight_|_eights?\b|k?Eights?(?![a-z])|\beights\b", "vec8", KERNELS),
    (r"[Ee]xchange_|_exchange|k?Exchange[A-Z]?", "mailbox between CTAs, warp reduction buffer", KERNELS),
    (r"\b[Bb]orders?\b", "kernel boundary", KERNELS + ("docs",)),
    (r"\b[Bb]rief(?:ly)?\b|[Bb]rief_", "fast-math", KERNELS),
    (r"[Pp]lacement|backend_?(?:\.|->)place\(", "repack", ("cuda/kernels", "cuda/src/core")),
    (r"\b[Ll]argest_?", "running max", ("cuda/kernels/attention",)),
    (r"[Cc]olumns?_|_columns?(?![a-z])|k[A-Za-z]*Columns?(?![a-z])", "tokens (GEMM N)", LINEAR + LINEAR_BENCH),
    (r"[Cc]hain", "persistent fused layers, launch sequence",
     LINEAR + LINEAR_BENCH + ATTENTION + ("cuda/kernels/step", "cuda/bench/kernel_bench")),
    (r"\b[Ww]ays?\b|_ways?\b|\bways?_|k?Ways?(?![a-z])", "K-warp", LINEAR + LINEAR_BENCH),
    (r"[Ww]indows?(?![a-z])", "epilogue batch", ("cuda/kernels/linear", "cuda/src/llm/ops/cuda/linear") + HOST_LINEAR),
    (r"\b[Ww]ide\b|[Ww]ide_|_wide\b|k?Wide[A-Z]", "dequantize + GEMM", LINEAR),
    (r"\b[Ww]eight\b|_weights?\b|(?<!loads )\bweights\b", "softmax numerator, denominator, log-sum-exp",
     ("cuda/kernels/attention",)),
    (r"\bint part\b|\bkParts?(?![a-z])", "sub-tile, split-KV partial", ("cuda/kernels/attention/attention_decode",)),
    (r"kTurn|[Tt]urn_?[Cc]ost", "pipeline phase, wave, outputs at a time", KERNELS),
]  # fmt: skip

# Words of the same list that no pattern can refuse, because they have an ordinary meaning in the same rooms:
#   group           32 inputs with a scale, query heads of a key-value head, blocks of attention_decode_group; warps
#                   along M are M-warps
#   part            any part of something; as a name it is an operand, a field, a sub-block, a partial or a shard
#   products        matrix and dot products; those of an instruction are MMAs
#   quad            the four lanes that hold a row of an MMA; four floats are a float4
#   rows (of step)  rows of a matrix, StepRow; the entries of a batch are sequences
#   weight          a model's weights, and the integers of sampling_math.h
#   window          sliding-window attention, convolutions
#   chunk, slot     what a task of the thread pool takes, and a position in a KV page, in the host's operators
#   share           a fraction of a limit, in benches

# (path, line, why): where a word above has its ordinary or the field's own meaning.
ALLOWED = [
    (r"", r"[Rr]ecord_?[Ee]vent|[Ee]vent_?[Rr]ecord|EventRecord|[Rr]ecords? (?:an|the|of an|its) event|event_record",
     "CUDA's word for events"),
    (r"", r"[Ll]og(?:ged)? records?|LogRecord|log_record", "the tracing crates' word for a line of log"),
    (r"docs/(?:ABI|ARCHITECTURE)\.md", r"records", "log records"),
    (r"docs/FORMATS\.md", r"[Rr]ecords?", "what a handle of ZCL1 gives to read"),
    (r"\.py$", r"\.(?:l|r)?strip\(", "str.strip"),
    (r"", r"strip_(?:prefix|suffix)|stripped|\.strip\b", "std; stripped binaries"),
    (r"docs/lab/", r"layer_chain\.txt", "the name of a committed result"),
    (r"kernels/linear/packed_gemm_mma\.cuh", r"\b[Cc]hunks?\b|chunk_count", "16 bytes, the step of a swizzle"),
    (r"kernels/linear/", r"two kernels share|clusters? that share|[Ee]ight (?:floats|warps|rows)", "ordinary words"),
]  # fmt: skip

TERMS = [(re.compile(pattern), plain, rooms) for pattern, plain, rooms in TERMS]
ALLOWED = [(re.compile(path), re.compile(line)) for path, line, _ in ALLOWED]


def text_files(folder: pathlib.Path):
    for path in sorted(folder.iterdir()):
        if OUTPUTS.match(path.name):  # .git is a file in a linked worktree
            continue
        if path.is_dir():
            yield from text_files(path)
        elif path.is_file():
            yield path


def private_words(name: str, line: str) -> list[str]:
    """The private words in a line of the file `name`, with the terms to use."""
    found = []
    for pattern, plain, rooms in TERMS:
        if rooms and not name.startswith(rooms):
            continue
        match = pattern.search(line)
        if match and not any(path.search(name) and allowed.search(line) for path, allowed in ALLOWED):
            found.append(f"'{match.group(0)}' is private: {plain}")
    return found


def main() -> int:
    found = []
    for path in text_files(ROOT):
        name = str(path.relative_to(ROOT))
        if name in EXEMPT or path.suffix in BINARY or "corpus" in path.parts or "data" in path.parts:
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.split("\n"), 1):
            if match := WORDS.search(line):
                found.append(f"{name}:{number}: {match.group(0)}")
            if line != line.rstrip():
                found.append(f"{name}:{number}: space at the end of the line")
            if not name.startswith("bench/results/"):
                found += [f"{name}:{number}: {word}" for word in private_words(name, line)]
        if text and not text.endswith("\n"):
            found.append(f"{name}: no newline at the end")
    print("\n".join(found) or "words: clean")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
