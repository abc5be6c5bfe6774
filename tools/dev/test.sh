# ./dev test [--long]: every test of the project, cheap ones first.

FUZZ_SECONDS=${FUZZ_SECONDS:-60}
FUZZ_EXECUTIONS=${FUZZ_EXECUTIONS:-10000000}

command_test() {
  local long=0 begin=$EPOCHREALTIME
  case ${1:-} in
    "") ;;
    --long) long=1 ;;
    *) die "usage: ./dev test [--long]" ;;
  esac
  unset WORKER_CUDA_BUILD WORKER_CUDA_ARCHS WORKER_CUDA_NATIVE_DIR CUDAARCHS VIRTUAL_ENV
  export CARGO_TERM_COLOR=never
  source tools/dev/lint.sh
  source tools/dev/fuzz.sh

  step "set-up: tools" need_test_tools
  need_test_tools >/dev/null
  step "set-up: model" need_model
  need_model >/dev/null
  step "set-up: CUDA wheels" need_cuda_wheels
  need_cuda_wheels >/dev/null
  step "set-up: NVRTC" need_nvrtc
  need_nvrtc >/dev/null
  export WCUDA_TEST_MODEL=$DEMO_MODEL

  lint_steps
  step "header alone" header_alone
  step "set-up: numpy" need_numpy
  need_numpy >/dev/null
  export WCUDA_TINY_FORMATS=$TARGET/tiny-formats
  step_unless_unchanged "tiny models of each format" "$(fingerprint tools/oracle tools/golden)" \
    "$PYTHON" tools/oracle/tiny_formats.py --out "$WCUDA_TINY_FORMATS"
  step "ctest" ctest_host
  step "clippy" clippy_everywhere
  step "cargo test" cargo_test --workspace
  cargo_features
  step "rustdoc" rustdoc_strict
  if compgen -G 'examples/*.rs' >/dev/null; then step "examples" run_examples; fi
  python_steps
  step "worker with CUDA, sm_90a" worker_cuda_90a
  step "device code" device_code
  step "worker without CUDA" worker_release off
  step "start without a driver" start_without_driver
  if compgen -G 'tools/dev/fidelity.sh' >/dev/null; then
    source tools/dev/fidelity.sh
    fidelity_steps
  fi
  fuzz_steps "$FUZZ_SECONDS"
  if [ $long = 1 ]; then
    source tools/dev/long.sh
    long_steps
  fi
  summary "$begin"
}

# The public headers compile by themselves, as C11 and as C++17, with both compilers.
header_alone() {
  local header compiler
  for header in cuda/include/*.h; do
    for compiler in gcc "${CLANG/clang++/clang}"; do
      echo "#include \"$(basename "$header")\"" |
        "$compiler" -std=c11 -x c -Icuda/include -Wall -Wextra -Wpedantic -Wstrict-prototypes -Werror -fsyntax-only -
    done
    for compiler in g++ "$CLANG"; do
      echo "#include \"$(basename "$header")\"" |
        "$compiler" -std=c++17 -x c++ -Icuda/include -Wall -Wextra -Wpedantic -Werror -fsyntax-only -
    done
  done
}

ctest_host() { ctest_native host --timeout 300; }

clippy_everywhere() {
  cargo_tested clippy --workspace --all-targets --quiet -- -D warnings
  local features
  for features in "" $(crate_features); do
    cargo_tested clippy -p worker-cuda --all-targets --quiet --no-default-features --features "$features" \
      -- -D warnings
  done
}

# The optional features of the crate, those apart that only choose how the native library is built.
crate_features() {
  cargo metadata --format-version 1 --no-deps | python3 -c '
import json, sys
[package] = [p for p in json.load(sys.stdin)["packages"] if p["name"] == "worker-cuda"]
print(*sorted(set(package["features"]) - {"default", "cuda", "cuda-auto"}))'
}

# The crate alone, then each feature alone.
cargo_features() {
  local features
  for features in "" $(crate_features); do
    step "cargo test, ${features:-no features}" \
      cargo_test -p worker-cuda --no-default-features --features "$features"
  done
}

rustdoc_strict() {
  RUSTDOCFLAGS="-D warnings" cargo_tested doc --workspace --no-deps --quiet
}

# Numbered examples end to end on the host backend; each takes the model as its only argument.
run_examples() {
  local example name
  for example in examples/*.rs examples/*/main.rs; do
    name=${example#examples/}
    name=${name%.rs}
    name=${name%/main}
    say "== $name"
    cargo_tested run --quiet --features manifest --example "$name" -- "$DEMO_MODEL"
  done
}

# Checks of the independent oracles: numpy and the file reader of gguf, no engine.
python_steps() {
  compgen -G 'tools/*/test_*.py' >/dev/null || return 0
  local script
  for script in tools/*/test_*.py; do
    step "$script" "$PYTHON" "$script"
  done
}

worker_cuda_90a() {
  WORKER_CUDA_ARCHS=90a worker_release on
}

# The slowest files and the size, shown at the end of the run.
device_code() {
  python3 tools/dev/compile_report.py "$TARGET/release/build" "$TARGET/cuda/release/worker-orcd" |
    tee "$TARGET/dev/device-code.txt"
}

# A binary built with CUDA needs none of NVIDIA's libraries, starts, and says what is missing.
start_without_driver() {
  local worker=$TARGET/cuda/release/worker-orcd needed answer
  needed=$(readelf -d "$worker" | grep NEEDED)
  say "$needed"
  if grep -Eiq 'cuda|cublas|nvrtc|nccl|nvidia|nvml' <<<"$needed"; then
    say "$worker needs a library of NVIDIA's"
    return 1
  fi
  answer=$(CUDA_VISIBLE_DEVICES= "$worker" devices 2>&1) || true
  say "$answer"
  grep -q 'no CUDA device: ' <<<"$answer"
}
