#!/usr/bin/env bash
# ./fidelity.sh MODEL: logits on the GPU, on 2,048 positions of four texts in the model's own tokens, against those of
# a forward pass in f32 numpy, and greedy answers compared with the host's and with those with drafts; bounds:
# docs/NUMERICS.md. Needs a python3 that has numpy.
set -uo pipefail
model=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")"
[ -e tree ] || tar -xJf pack.tar.xz 2>/dev/null || python3 -m tarfile -e pack.tar.xz .
export PYTHONPATH=$PWD/python
oracle=tree/tools/oracle work=$(mktemp -d) status=0
trap 'rm -rf "$work"' EXIT
sizes=(1 8 64 256 512) # tokens a step; each takes other kernels

# Each text has 512 tokens, or is repeated until it has.
python3 - "$model" >"$work/tokens.json" <<'PYTHON' || exit 1
import itertools, json, subprocess, sys
texts = ("english", "languages", "code", "chat")
def tokens(text):
    command = ["./worker-orcd", "tokenize", "--parse-special", "--json", "--model", sys.argv[1], "--file"]
    file = f"tree/tests/data/fidelity/{text}.txt"
    return json.loads(subprocess.run([*command, file], check=True, stdout=subprocess.PIPE).stdout)["tokens"]
sequences = [list(itertools.islice(itertools.cycle(tokens(text)), 512)) for text in texts]
json.dump({"texts": texts, "sequences": sequences}, sys.stdout)
PYTHON

compare() {
  echo "== fidelity, $1 tokens a step"
  python3 $oracle/fidelity.py compare --model "$model" --logits "$work/$1.f32" --reference "$work/reference.npy" \
    --tokens "$work/tokens.json" --max-kl 3e-4 --min-top1 99 && touch "$work/$1.good"
}

# greedy ENGINE, as greedy.py names it
greedy() {
  echo "== greedy answers, cuda compared with $1"
  python3 $oracle/greedy.py --worker ./worker-orcd --model "$model" --backend cuda --against "$1" &&
    touch "$work/$1.good"
}

for size in "${sizes[@]}"; do
  ./worker-orcd logits --backend cuda --batch "$size" --model "$model" --tokens "$work/tokens.json" \
    --out "$work/$size.f32" || status=1
done
# The first makes the reference for all.
compare "${sizes[0]}" >"$work/${sizes[0]}.log" 2>&1
for size in "${sizes[@]:1}"; do compare "$size" >"$work/$size.log" 2>&1 & done
engines=(host ngram itself)
for engine in "${engines[@]}"; do greedy "$engine" >"$work/$engine.log" 2>&1 & done
wait
for part in "${sizes[@]}" "${engines[@]}"; do
  cat "$work/$part.log"
  [ -e "$work/$part.good" ] || status=1
done
exit $status
