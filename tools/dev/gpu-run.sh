#!/usr/bin/env bash
# Runs the GPU tests of this folder: ./run.sh [FILTER]. WORKER_CUDA_DEMO_MODEL names the model, if it is here.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export WCUDA_TEST_DATA=$PWD/data
status=0
export WCUDA_REQUIRE_GPU=1
./worker-orcd devices || status=1
./wcuda_tests --gtest_filter="${1:-Gpu*}" --gtest_brief=1 || status=1
for test in tests/*; do
  [ -x "$test" ] || continue
  echo "== $test"
  "$test" --quiet gpu || status=1
done
# Last: it loses the device for its process, on purpose.
./wcuda_gpu_fault_test || status=1
exit $status
