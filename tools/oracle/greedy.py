#!/usr/bin/env python3
"""Greedy answers to 20 prompts by worker-orcd and by another engine: they may part only where it is nearly a tie.

greedy.py --worker worker-orcd --model F [--backend host] [--against ENGINE] [--tokens 64]

ENGINE is llama-cpp, the backend host or cuda, or the same backend with drafts: from n-grams of the text (ngram), or
by the model itself (itself), which rarely guesses, because its drafts cost as much as they save. Both engines get the
same prompt tokens. Where their answers part for the first time, `gap` is the difference between worker-orcd's
logprobs of the two tokens, `here` the largest difference between the engines' logprobs of worker-orcd's first two
tokens at that position. Where they part at all the gap is at most twice `here`: that alone would find nothing. So it
is held against twice the same difference where nothing depends on it, at the positions before, of all prompts: the
value that 99 % of them stay below. A gap above that is no tie; the program then ends with 1. Needs numpy for
llama-cpp.
"""

import argparse
import json
import subprocess
import sys

PROMPTS = (
    "The capital of France is", "Water boils at", "def fibonacci(n):\n", "Once upon a time there was a fox who",
    "The three primary colours are", "List of prime numbers: 2, 3, 5,", "Dear Sir or Madam,\n\nI am writing to",
    "#include <stdio.h>\n\nint main(void) {\n", "Photosynthesis is the process by which", "Q: What is 12 times 12?\nA:",
    "The Roman Empire fell because", "La tour Eiffel se trouve à", "Es war einmal ein König, der",
    "<|im_start|>user\nName two rivers in Africa.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a haiku about snow.<|im_end|>\n<|im_start|>assistant\n",
    "SELECT name, COUNT(*) FROM", "The recipe needs flour, sugar and", "In 1969 the first humans",
    "A triangle with sides 3, 4 and 5 is", "{\"name\": \"Ada\", \"born\":",
)  # fmt: skip
TOP = 32  # logprobs compared at a position


def worker_answers(worker, model, backend, count, drafts=()):
    """For each prompt: prompt tokens, tokens drawn, and [{token: logprob}] of the most likely at each."""
    request = {"raw": True, "ignore_end": True, "max_tokens": count, "logprobs": TOP}
    lines = "".join(json.dumps({"prompt": prompt, **request}) + "\n" for prompt in PROMPTS)
    command = [worker, "run", "--backend", backend, "--model", model, "--requests", "-", "--json", *drafts]
    output = subprocess.run(command, input=lines, capture_output=True, text=True, check=True).stdout
    answers = [json.loads(line) for line in output.splitlines()]
    assert len(answers) == len(PROMPTS), f"{len(answers)} answers"
    if drafts:
        accepted = sum(answer["accepted_draft_tokens"] for answer in answers)
        print(f"{accepted} of {sum(len(answer['tokens']) for answer in answers)} tokens were drafts")
        assert accepted > 0
    return [(a["prompt_tokens"], a["tokens"], [dict(map(tuple, top)) for top in a["logprobs"]]) for a in answers]


class LlamaCpp:
    def __init__(self, model, count):
        from llama_cpp import Llama  # only where llama-cpp-python is installed
        self.llama = Llama(model, n_ctx=256 + count, logits_all=True, verbose=False)

    def answer(self, prompt, count):
        import numpy as np
        self.llama.reset()
        self.llama.eval(prompt)
        tokens, tops = [], []
        for _ in range(count):
            logits = np.array(self.llama.scores[self.llama.n_tokens - 1], np.float64)
            logprobs = logits - logits.max()
            logprobs -= np.log(np.exp(logprobs).sum())
            tokens.append(int(logits.argmax()))
            tops.append(dict(enumerate(logprobs)))
            self.llama.eval([tokens[-1]])
        return tokens, tops


def largest_difference(ours, theirs):
    """Over the first two tokens of ours that the other engine reports too."""
    first = sorted(ours, key=lambda token: -ours[token])[:2]
    return max((abs(ours[token] - theirs[token]) for token in first if token in theirs), default=0.0)


def compare(ours, theirs):
    """Position where two answers part (None: nowhere), and the differences at the positions before."""
    differences = []
    for position, (token, other) in enumerate(zip(ours[1], theirs[0])):
        if token != other:
            return position, differences
        differences.append(largest_difference(ours[2][position], theirs[1][position]))
    return None, differences


def report(ours, theirs):
    """Prints the table; true if every parting is nearly a tie."""
    compared = [compare(mine, other) for mine, other in zip(ours, theirs)]
    seen = sorted(d for _, differences in compared for d in differences) or [0.0]
    usual = seen[int(0.99 * (len(seen) - 1))]
    good = True
    print(f"{'prompt':<34} {'equal':>6} {'ours':>7} {'theirs':>7} {'gap':>7} {'here':>7}")
    for prompt, mine, other, (position, differences) in zip(PROMPTS, ours, theirs, compared):
        line = f"{prompt[:32]!r:<34} {len(differences):>6}"
        if position is not None:
            top, peer = mine[2][position], other[1][position]
            a, b = mine[1][position], other[0][position]
            gap = top[a] - top[b] if b in top else float("inf")
            line += f" {a:>7} {b:>7} {gap:>7.3f} {largest_difference(top, peer):>7.3f}"
            if gap > 2 * usual:
                good = False
                line += "  no tie"
        print(line)
    whole = sum(position is None for position, _ in compared)
    equal, count = sum(len(d) for _, d in compared), sum(len(answer[1]) for answer in ours)
    print(f"{whole} of {len(PROMPTS)} answers equal; {equal} of {count} tokens before the first that differs; "
          f"differences of logprobs there: 99 % below {usual:.3f}, largest {seen[-1]:.3f}")
    return good


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--backend", default="host", choices=("host", "cuda"))
    parser.add_argument("--against", default="llama-cpp", choices=("llama-cpp", "host", "cuda", "ngram", "itself"))
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    ours = worker_answers(args.worker, args.model, args.backend, args.tokens)
    if args.against == "llama-cpp":
        other = LlamaCpp(args.model, args.tokens)
        theirs = [other.answer(prompt, args.tokens) for prompt, _, _ in ours]
    else:
        drafts = {"ngram": ["--draft-ngram"], "itself": ["--draft-model", args.model]}.get(args.against, [])
        backend = args.backend if drafts else args.against
        theirs = [answer[1:] for answer in worker_answers(args.worker, args.model, backend, args.tokens, drafts)]
    if not report(ours, theirs):
        sys.exit("answers part where it is no tie")


if __name__ == "__main__":
    main()
