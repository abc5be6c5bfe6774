#!/usr/bin/env python3
"""How close logits are to those of forward.py on the texts of tests/data/fidelity (2,048 positions).

Run: python tools/oracle/fidelity.py COMMAND …
  tokens  --model F                  remakes tokens.json from the texts (needs llama-cpp-python)
  compare --model F --logits L       L: raw little-endian f32 (positions, vocabulary), or - for stdin, as
          [--max-kl X --min-top1 P]  "worker-orcd logits" writes them; exit status 1 beyond these bounds
          [--positions N]            only the first N of each text
          [--reference R.npy]        keeps forward.py's logits there, or takes them from there
          [--kv float16]             forward.py rounds keys and values to this type of numpy
          [--tokens T.json]          instead of tokens.json
  peer    --model F                  the same for llama-cpp-python
Prints the mean and largest KL divergence (reference to engine, natural logarithm) and the share of
positions where both put the same token first. Needs numpy and gguf==0.19.0.
"""

import argparse
import json
import pathlib
import sys

import numpy as np

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "fidelity"
TEXTS = ("english", "languages", "code", "chat")
LENGTH = 512  # positions of each text


def read_tokens(path):
    """{text: token ids (LENGTH)}"""
    data = json.loads(path.read_text())
    return dict(zip(data["texts"], data["sequences"]))


def load_llama(path, **options):
    from llama_cpp import Llama  # only where llama-cpp-python is installed
    return Llama(path, verbose=False, **options)


def make_tokens(model):
    llama = load_llama(model, vocab_only=True)
    sequences = []
    for name in TEXTS:
        text = (DATA / f"{name}.txt").read_bytes()
        sequences.append(llama.tokenize(text, add_bos=False, special=True)[:LENGTH])
        assert len(sequences[-1]) == LENGTH, f"{name}.txt is too short"
    lines = ",\n".join(json.dumps(sequence) for sequence in sequences)
    (DATA / "tokens.json").write_text(
        f'{{"texts": {json.dumps(TEXTS)}, "sequences": [\n{lines}\n]}}\n')


def log_softmax(logits):
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def kl_and_agreement(reference, other, rows=64):
    """KL divergence (n) and equality of the first choice (n) of logits (n, vocabulary)."""
    kl = []
    for first in range(0, len(reference), rows):
        p, q = log_softmax(reference[first:first + rows]), log_softmax(other[first:first + rows])
        kl.append((np.exp(p) * (p - q)).sum(axis=1))
    return np.concatenate(kl), reference.argmax(axis=1) == other.argmax(axis=1)


def reference_logits(model_path, sequences, kept, kv_type):
    """For each sequence f32 (n, vocabulary), by forward.py; from the file `kept` if it is there."""
    import forward
    if kept and kept.exists():
        return np.split(np.load(kept, mmap_mode="r"), len(sequences))
    model = forward.Model(model_path, np.dtype(kv_type))
    logits = [model.logits(tokens) for tokens in sequences]
    if kept:
        partial = kept.with_suffix(".part.npy")
        np.save(partial, np.concatenate(logits))
        partial.replace(kept)
    return logits


def compare(reference, sequences, logits_of):
    """Prints a line for each text and the whole; returns mean KL and top-1 agreement in percent.
    logits_of(tokens) gives f32 (n, vocabulary), called in the order of the texts."""
    all_kl, all_agree = [], []
    for (name, tokens), expected in zip(sequences.items(), reference):
        other = logits_of(tokens)
        if not np.isfinite(other).all():
            sys.exit(f"{name}: logits that are not finite")
        kl, agree = kl_and_agreement(expected, other)
        print(f"{name:10} mean KL {kl.mean():.3e}  largest {kl.max():.3e}  top-1 {100 * agree.mean():.2f} %",
              flush=True)
        all_kl.append(kl)
        all_agree.append(agree)
    kl, agree = np.concatenate(all_kl), np.concatenate(all_agree)
    print(f"{'all':10} mean KL {kl.mean():.3e}  largest {kl.max():.3e}  top-1 {100 * agree.mean():.2f} %  "
          f"({len(kl)} positions)")
    return kl.mean(), 100 * agree.mean()


def raw_reader(stream, model_path):
    """Reads the logits of one sequence after the other from a stream of f32."""
    import forward
    vocabulary = len(forward.Model(model_path).file.raw["token_embd.weight"].data)

    def logits_of(tokens):
        count = len(tokens) * vocabulary
        data = stream.read(4 * count)
        if len(data) != 4 * count:
            sys.exit(f"the logits end after {len(data)} of {4 * count} bytes of a sequence")
        return np.frombuffer(data, np.float32).reshape(len(tokens), vocabulary)

    return logits_of


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("tokens", "compare", "peer"))
    parser.add_argument("--model")
    parser.add_argument("--logits")
    parser.add_argument("--reference", type=pathlib.Path)
    parser.add_argument("--kv", default="float32")
    parser.add_argument("--tokens", type=pathlib.Path, default=DATA / "tokens.json")
    parser.add_argument("--positions", type=int, default=LENGTH)
    parser.add_argument("--max-kl", type=float, default=np.inf)
    parser.add_argument("--min-top1", type=float, default=0.0)
    args = parser.parse_args()
    if args.command == "tokens":
        make_tokens(args.model)
    else:
        if args.command == "peer":
            llama = load_llama(args.model, n_ctx=LENGTH, logits_all=True)

            def logits_of(tokens):
                llama.reset()
                llama.eval(tokens)
                return np.array(llama.scores[:len(tokens)], np.float32)
        else:
            stream = sys.stdin.buffer if args.logits == "-" else open(args.logits, "rb")
            logits_of = raw_reader(stream, args.model)
        sequences = {name: tokens[:args.positions] for name, tokens in read_tokens(args.tokens).items()}
        reference = reference_logits(args.model, list(sequences.values()), args.reference, args.kv)
        kl, top1 = compare(reference, sequences, logits_of)
        if kl > args.max_kl or top1 < args.min_top1:
            sys.exit(f"beyond the bounds: mean KL {args.max_kl:g}, top-1 {args.min_top1:g} %")


if __name__ == "__main__":
    main()
