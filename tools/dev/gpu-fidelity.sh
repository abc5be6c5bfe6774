#!/usr/bin/env bash
# ./fidelity.sh MODEL: logits on 2,048 positions on the GPU against those of a forward pass in f32 numpy, and
# greedy answers beside the host's; bounds: docs/NUMERICS.md. Needs a python3 that has numpy.
set -uo pipefail
model=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")"
[ -e tree ] || tar -xJf pack.tar.xz 2>/dev/null || python3 -m tarfile -e pack.tar.xz .
export PYTHONPATH=$PWD/python
oracle=tree/tools/oracle work=$(mktemp -d) status=0
trap 'rm -rf "$work"' EXIT
# Each size takes other kernels: 1 and 8 tokens, 64, and more.
for batch in 1 8 64 256; do
  echo "== fidelity, $batch tokens a step"
  ./worker-orcd logits --backend cuda --batch $batch --model "$model" --tokens tree/tests/data/fidelity/tokens.json \
    --out "$work/logits.f32" || status=1
  python3 $oracle/fidelity.py compare --model "$model" --logits "$work/logits.f32" --reference "$work/reference.npy" \
    --max-kl 3e-4 --min-top1 99 || status=1
done
echo "== greedy answers, cuda beside host"
python3 $oracle/greedy.py --worker ./worker-orcd --model "$model" --backend cuda --against host || status=1
exit $status
