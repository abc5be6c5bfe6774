#!/usr/bin/env bash
# Runs the GPU tests of this folder, native and Rust: ./run.sh [GOOGLETEST_FILTER]. A Rust test that is skipped fails. WCUDA_TEST_MODEL names the demo model, if it
# is here; SANITIZE=1 adds the reduced suite under compute-sanitizer, WCUDA_LARGE_SHAPES=1 models of up to 75 GB.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
[ -e tree ] || tar -xJf pack.tar.xz 2>/dev/null || python3 -m tarfile -e pack.tar.xz .
export WCUDA_REQUIRE_GPU=1 WCUDA_TINY_FORMATS=$PWD/tree/tiny-formats
status=0
place=$(cat tree/place.txt)
[ -e "$place" ] || { mkdir -p "$(dirname "$place")" && ln -s "$PWD/tree" "$place"; }
./worker-orcd devices || status=1
./wcuda_tests --gtest_filter="${1:-Gpu*:*/Gpu*}" --gtest_brief=1 || status=1
./wcuda_hello cuda || status=1
for test in tests/*; do
  [ -x "$test" ] || continue
  echo "== $test"
  output=$("$test" --quiet gpu_ --show-output 2>&1) || status=1
  grep -vE '^(successes:|---- |    gpu_|$)' <<<"$output"
  # A test that did nothing has not passed.
  if grep -q '^skipped: ' <<<"$output"; then
    echo "$test: a test was skipped"
    status=1
  fi
done
if [ -n "${WCUDA_TEST_MODEL:-}" ] && python3 -c 'import numpy' 2>/dev/null; then
  ./fidelity.sh "$WCUDA_TEST_MODEL" || status=1
fi
if [ "${SANITIZE:-0}" = 1 ]; then ./sanitize.sh || status=1; fi
# Last: it loses the device for its process, on purpose.
./wcuda_gpu_fault_test || status=1
exit $status
