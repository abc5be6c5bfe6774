#!/usr/bin/env bash
# Tests on a GPU with the binaries of this folder: ./run.sh [PART…], of native, rust, guests, fidelity, sanitize and
# fault; all but sanitize if none is named. One line a suite; what each printed is in the folder $OUT, or in logs/. GTEST_FILTER
# chooses among the native tests, WCUDA_TEST_MODEL names the demo model, if it is here, WCUDA_LARGE_SHAPES=1 adds models
# of up to 75 GB.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
[ -e tree ] || tar -xJf pack.tar.xz 2>/dev/null || python3 -m tarfile -e pack.tar.xz .
export WCUDA_REQUIRE_GPU=1 WCUDA_TINY_FORMATS=${WCUDA_TINY_FORMATS:-$PWD/tree/tiny-formats}
logs=${OUT:-$PWD/logs}
mkdir -p "$logs"
place=$(cat tree/place.txt)
[ -e "$place" ] || { mkdir -p "$(dirname "$place")" && ln -s "$PWD/tree" "$place"; }

# nvrtc: where the tests look for the run-time compiler, unless the environment says it.
nvrtc() {
  local folder
  for folder in "$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' 2>/dev/null)/nvidia/cu13/lib" \
    /usr/local/cuda/lib64 /usr/local/cuda/targets/x86_64-linux/lib; do
    ls "$folder"/libnvrtc.so* >/dev/null 2>&1 && export WCUDA_TEST_NVRTC=$folder && return
  done
}
[ -n "${WCUDA_TEST_NVRTC:-}" ] || nvrtc

# whole NAME COMMAND…: a part that counts for itself, with the lines of its log that give the counts.
whole() {
  local name=$1 code=0
  shift
  "$@" >"$logs/$name.log" 2>&1 || code=$?
  echo "$name: exit $code $(grep -E '^\[  (PASSED|SKIPPED|FAILED ) ?\] [0-9]|^all .*mean KL|^(mem|race|init|sync)check: ' \
    "$logs/$name.log" | tr '\n' ';')"
  return $code
}

native() {
  ./worker-orcd devices && ./wcuda_hello cuda &&
    ./wcuda_tests --gtest_filter="${GTEST_FILTER:-Gpu*:*/Gpu*}" --gtest_brief=1
}

# The tests named gpu_… of each Rust suite. A test that did nothing has not passed; those of real models run if there is
# one.
rust() {
  local test output passed failed skipped code status=0 options=(--show-output)
  [ -n "${WCUDA_TEST_MODEL:-}" ] || options+=(--skip real_models)
  : >"$logs/rust.log"
  for test in tests/*; do
    [ -x "$test" ] || continue
    "$test" gpu_ "${options[@]}" --list | grep -q ': test$' ||
      { echo "$test: left out: WCUDA_TEST_MODEL names no model"; continue; }
    code=0
    output=$(timeout 300 "$test" gpu_ "${options[@]}" 2>&1) || code=$?
    printf '== %s\n%s\n' "$test" "$output" >>"$logs/rust.log"
    read -r passed failed < <(sed -nE 's/^test result: .* ([0-9]+) passed; ([0-9]+) failed;.*/\1 \2/p' <<<"$output") ||
      passed=0 failed=0
    skipped=$(grep -c '^skipped: ' <<<"$output")
    [ $code = 0 ] && [ "$skipped" = 0 ] && [ "$passed" != 0 ] || status=1
    echo "$test: exit $code, $((passed - skipped)) passed, $failed failed, $skipped skipped"
  done
  return $status
}

# The example guests of ZCTL/1, in the three shapes of ctl, each as a program and as a shared object.
guests() {
  local guest shape status=0
  for guest in echo vector_add; do
    for shape in 1 2 3; do
      python3 guests/guest_test.py $guest cuda "$PWD/guests/wcuda_guest_${guest}_$shape" \
        "$PWD/guests/wcuda_guest_host_$shape" "$PWD/guests/libwcuda_guest_${guest}_${shape}_so.so" &&
        echo "GpuGuest.$guest in shape $shape: passed" || status=1
    done
  done
  return $status
}

fidelity() {
  [ -n "${WCUDA_TEST_MODEL:-}" ] && python3 -c 'import numpy' 2>/dev/null ||
    { echo "fidelity: left out: WCUDA_TEST_MODEL names no model, or no numpy is here"; return; }
  whole fidelity ./fidelity.sh "$WCUDA_TEST_MODEL"
}

# fault comes last: it loses the device for its process, on purpose.
[ $# -gt 0 ] || set -- native rust guests fidelity fault
status=0
for part in "$@"; do
  case $part in
    native | guests) whole $part $part || status=1 ;;
    rust | fidelity) $part || status=1 ;;
    sanitize) whole sanitize ./sanitize.sh || status=1 ;;
    fault) whole fault ./wcuda_gpu_fault_test || status=1 ;;
    *) echo "run.sh: no part \"$part\"" >&2; exit 2 ;;
  esac
done
exit $status
