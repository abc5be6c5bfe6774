# ./dev test [--long | --stress]: every test of the project, cheap ones first.

FUZZ_CPU_SECONDS=${FUZZ_CPU_SECONDS:-480} # of all targets together
FUZZ_EXECUTIONS=${FUZZ_EXECUTIONS:-10000000}

command_test() {
  local kind=${1:-} begin=$EPOCHREALTIME
  case $kind in
    "" | --long | --stress) ;;
    *) die "usage: ./dev test [--long | --stress]" ;;
  esac
  unset WORKER_CUDA_BUILD WORKER_CUDA_ARCHS WORKER_CUDA_NATIVE_DIR CUDAARCHS VIRTUAL_ENV
  # Incremental compilation doubles the work of a first build. A failed assertion names its line without debug information.
  export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=false
  source tools/dev/lint.sh
  source tools/dev/fuzz.sh
  source tools/dev/stress.sh

  step "set-up: tools" need_test_tools
  need_test_tools >/dev/null
  [ "$kind" = --stress ] || early "fuzz targets" fuzz_build
  step "set-up: model" need_model
  need_model >/dev/null
  step "set-up: CUDA wheels" need_cuda_wheels
  need_cuda_wheels >/dev/null
  step "set-up: tests of JSON Schema" need_schema_suite
  step "set-up: NVRTC" need_nvrtc
  need_nvrtc >/dev/null
  export WCUDA_TEST_MODEL=$DEMO_MODEL
  step "set-up: numpy" need_numpy
  need_numpy >/dev/null
  tiny_formats

  if [ "$kind" = --stress ]; then
    step "native build" native_host
    stress_steps
    summary "$begin"
    return
  fi
  lint_steps
  early "CUDA library, sm_90a" cuda_library_90a
  fuzz_early "$FUZZ_CPU_SECONDS"
  step "header alone" header_alone
  local sources
  sources=$(sources_digest)
  step_unless_unchanged "ctest" "$sources" ctest_native host --timeout 300
  step "clippy, no features" clippy_no_features
  step_unless_unchanged "clippy and cargo test, every feature" "$sources" test_every_feature
  fuzz_early_transcripts "$FUZZ_CPU_SECONDS"
  step_unless_unchanged "cargo test, no features" "$sources" cargo_test -p worker-cuda --lib --no-default-features
  step "rustdoc" rustdoc_strict worker-cuda
  step_unless_unchanged "examples" "$sources" run_examples
  python_steps "$sources"
  step "CUDA library, sm_90a" joined "CUDA library, sm_90a"
  step "worker with CUDA" worker_with_cuda
  step "device code" device_code
  step "start without a driver" start_without_driver
  step_unless_unchanged "installed CUDA build" "$sources" installed_cuda_build
  step_unless_unchanged "without a toolkit" "$sources" without_toolkit
  source tools/dev/fidelity.sh
  fidelity_steps
  fuzz_steps
  if [ "$kind" = --long ]; then
    source tools/dev/long.sh
    long_steps
  fi
  summary "$begin"
}

# The public headers compile by themselves, as C11 and as C++17, with both compilers.
header_alone() {
  local header compiler
  for header in $(cd cuda/include && echo *.h */*.h); do
    for compiler in gcc "${CLANG/clang++/clang}"; do
      echo "#include \"$header\"" |
        "$compiler" -std=c11 -x c -Icuda/include -Wall -Wextra -Wpedantic -Wstrict-prototypes -Werror -fsyntax-only -
    done
    for compiler in g++ "$CLANG"; do
      echo "#include \"$header\"" |
        "$compiler" -std=c++17 -x c++ -Icuda/include -Wall -Wextra -Wpedantic -Werror -fsyntax-only -
    done
  done
}

# clippy instead of rustc compiles what the tests run, as `cargo clippy` has it compile for checks alone, so that
# nothing is compiled for checks first.
with_clippy() {
  RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__ "$@"
}

# Everything with every feature; without `--benches` cargo leaves those out, with it it would run them.
test_every_feature() {
  with_clippy cargo_tested test --workspace --benches --no-run --quiet --features "$(every_feature)"
  with_clippy cargo_test --workspace --features "$(every_feature)"
}

clippy_no_features() { cargo_tested clippy -p worker-cuda --all-targets --quiet --no-default-features -- -D warnings; }

# The library with each feature alone.
clippy_each_feature() {
  local feature
  for feature in $(crate_features); do
    cargo_tested clippy -p worker-cuda --lib --quiet --no-default-features --features "$feature" -- -D warnings
  done
}

# The optional features of the crate, those apart that only choose how the native library is built.
crate_features() {
  cargo metadata --format-version 1 --no-deps | python3 -c '
import json, sys
[package] = [p for p in json.load(sys.stdin)["packages"] if p["name"] == "worker-cuda"]
print(*sorted(set(package["features"]) - {"default", "cuda", "cuda-auto"}))'
}

# Of a build of the workspace.
every_feature() { echo "$(crate_features | sed 's|[^ ]*|worker-cuda/&|g') worker-orcd/tls"; }

# rustdoc_strict PACKAGE…: the worker's, whose dependencies take most of the time, is built by --long.
rustdoc_strict() {
  RUSTDOCFLAGS="-D warnings" cargo_tested doc "${@/#/--package=}" --no-deps --quiet
}

# Numbered examples end to end on the host backend, as the tests compiled them; each takes the model as its only argument.
run_examples() {
  local example name
  for example in examples/*.rs examples/*/main.rs; do
    name=${example#examples/}
    name=${name%.rs}
    name=${name%/main}
    say "== $name"
    "$TARGET/debug/examples/$name" "$DEMO_MODEL"
  done
}

# Checks of the independent oracles and of a table made with them: numpy and the file reader of gguf, no engine.
python_steps() {
  local script
  step "codebooks of the IQ formats" "$PYTHON" tools/make_iq_tables.py --check
  for script in tools/*/test_*.py; do
    step_unless_unchanged "$script" "$1" "$PYTHON" "$script"
  done
}

# The build of CMake that Cargo runs, for the crate alone. The compiler of device code leaves out what takes long: half
# the time, and nothing here runs it. `--long`, ./dev gpu-pack and ./dev bench compile it as a release has it.
cuda_library_90a() {
  CARGO_TARGET_DIR=$TARGET/cuda CUDAFLAGS=--Ofast-compile=max WORKER_CUDA_BUILD=on WORKER_CUDA_ARCHS=90a-real \
    cargo build -p worker-cuda --no-default-features --features cuda
}

# Where that build installed the library; Cargo keeps a folder for each set of settings, the newest counts.
cuda_prefix() { ls -td "$TARGET"/cuda/debug/build/worker-cuda-*/out/prefix | head -n1; }

# With the features and so the dependencies that the tests have compiled.
worker_with_cuda() {
  WORKER_CUDA_NATIVE_DIR=$(cuda_prefix) cargo build --workspace --bin worker-orcd \
    --features "worker-orcd/cuda $(every_feature)"
  cp "$TARGET/debug/worker-orcd" "$TARGET/cuda/worker-orcd"
}

# The slowest files and the size, shown at the end of the run.
device_code() {
  python3 tools/dev/compile_report.py "$TARGET/cuda/debug/build" "$TARGET/cuda/worker-orcd" |
    tee "$TARGET/dev/device-code.txt"
}

# A binary built with CUDA needs none of NVIDIA's libraries, starts, and says what is missing.
start_without_driver() {
  local worker=$TARGET/cuda/worker-orcd needed answer
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

# The archive that Cargo compiled with CUDA, installed by its CMake build and linked by other projects.
installed_cuda_build() {
  local prefix
  prefix=$(cuda_prefix)
  grep -x 'cuda=1' "$prefix/lib/pkgconfig/worker_cuda.pc"
  cmake -DBUILD="${prefix%/prefix}/native" -DWORK="$TARGET/installed-cuda" -DCC="${CC:-cc}" -DCXX="${CXX:-c++}" \
    -DLIBDIR=lib -DCUDA=1 -P cuda/tests/install/check.cmake
}

# The build switch where no toolkit is found: the default feature cuda-auto builds the host backend and warns, the
# feature cuda is an error that names the places.
without_toolkit() {
  local log=$TARGET/dev/no-toolkit.txt nowhere=$TARGET/no-toolkit
  export CARGO_TARGET_DIR=$TARGET/without-toolkit WORKER_CUDA_TOOLKIT=$nowhere
  rm -rf "$CARGO_TARGET_DIR" # Cargo shows a warning of the build script when it runs
  ! cargo build -p worker-cuda --no-default-features --features cuda 2>"$log" ||
    die "the feature cuda builds without a toolkit"
  cat "$log"
  grep -qF "no CUDA toolkit of version 13.0 or newer; looked at: WORKER_CUDA_TOOLKIT ($nowhere): no such folder" "$log"
  cargo build -p worker-cuda --no-default-features --features cuda-auto 2>"$log" || { cat "$log"; return 1; }
  cat "$log"
  grep -qF 'no CUDA toolkit found: building the host backend only' "$log"
  grep -qx 'cuda=0' "$CARGO_TARGET_DIR"/debug/build/worker-cuda-*/out/prefix/lib/pkgconfig/worker_cuda.pc
}
