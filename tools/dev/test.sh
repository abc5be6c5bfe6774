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
  # Incremental compilation doubles the work of a first build.
  export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0
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
  early "worker with CUDA, sm_90a" worker_cuda_90a
  step "header alone" header_alone
  step "ctest" ctest_native host --timeout 300
  step "clippy" clippy_everywhere
  step "cargo test, every feature" cargo_test --workspace --features "$(crate_features | sed 's|[^ ]*|worker-cuda/&|g')"
  step "cargo test, no features" cargo_test -p worker-cuda --no-default-features
  step "rustdoc" rustdoc_strict
  step "examples" run_examples
  python_steps
  step "worker with CUDA, sm_90a" joined "worker with CUDA, sm_90a"
  step "device code" device_code
  step "start without a driver" start_without_driver
  step "installed CUDA build" installed_cuda_build
  step "worker without a toolkit" worker_without_toolkit
  source tools/dev/fidelity.sh
  fidelity_steps
  fuzz_steps "$FUZZ_CPU_SECONDS"
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

# All of it; the crate with no feature; and with each feature alone the crate, its unit tests, and the tests and examples
# that name the feature, since the others are the same as without. The tests run with every feature and with none.
clippy_everywhere() {
  cargo_tested clippy --workspace --all-targets --quiet -- -D warnings
  cargo_tested clippy -p worker-cuda --all-targets --quiet --no-default-features -- -D warnings
  local feature
  for feature in $(crate_features); do
    cargo_tested clippy -p worker-cuda --lib --profile test $(targets_of_feature "$feature") --quiet \
      --no-default-features --features "$feature" -- -D warnings
  done
}

# targets_of_feature FEATURE: options for Cargo that choose the tests and examples whose source or manifest names it.
targets_of_feature() {
  cargo metadata --format-version 1 --no-deps | python3 -c '
import json, pathlib, sys
feature = sys.argv[1]
[package] = [p for p in json.load(sys.stdin)["packages"] if p["name"] == "worker-cuda"]
for target in package["targets"]:
    kind, needed = target["kind"][0], target.get("required-features", [])
    is_named = f"feature = \"{feature}\"" in pathlib.Path(target["src_path"]).read_text()
    if kind in ("test", "example") and set(needed) <= {feature} and (needed or is_named):
        print(f"--{kind}", target["name"])' "$1"
}

# The optional features of the crate, those apart that only choose how the native library is built.
crate_features() {
  cargo metadata --format-version 1 --no-deps | python3 -c '
import json, sys
[package] = [p for p in json.load(sys.stdin)["packages"] if p["name"] == "worker-cuda"]
print(*sorted(set(package["features"]) - {"default", "cuda", "cuda-auto"}))'
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
    cargo_tested run --quiet --features manifest,zctl --example "$name" -- "$DEMO_MODEL"
  done
}

# Checks of the independent oracles and of a table made with them: numpy and the file reader of gguf, no engine.
python_steps() {
  local script
  step "codebooks of the IQ formats" "$PYTHON" tools/make_iq_tables.py --check
  for script in tools/*/test_*.py; do
    step "$script" "$PYTHON" "$script"
  done
}

# As users build it, but that the optimizer leaves the Rust code alone: that takes two minutes here and tests nothing.
worker_cuda_90a() {
  CARGO_PROFILE_RELEASE_OPT_LEVEL=0 WORKER_CUDA_ARCHS=90a-real worker_release on
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

# The archive that Cargo compiled for the worker with CUDA, installed by its CMake build and linked by other projects.
installed_cuda_build() {
  local prefix
  # Newest first: Cargo keeps a folder for each set of features.
  for prefix in $(ls -td "$TARGET"/release/build/worker-cuda-*/out/prefix); do
    grep -qx 'cuda=1' "$prefix/lib/pkgconfig/worker_cuda.pc" || continue
    cmake -DBUILD="${prefix%/prefix}/native" -DWORK="$TARGET/installed-cuda" -DCC="${CC:-cc}" -DCXX="${CXX:-c++}" \
      -DLIBDIR=lib -DCUDA=1 -P cuda/tests/install/check.cmake
    return
  done
  die "no build of worker-cuda with CUDA in $TARGET/release/build"
}

# The build switch where no toolkit is found: the default feature cuda-auto builds the host backend and warns, the
# feature cuda is an error that names the places. In the profile of the tests, whose dependencies are compiled.
worker_without_toolkit() {
  local log=$TARGET/dev/no-toolkit.txt nowhere=$TARGET/no-toolkit
  ! WORKER_CUDA_TOOLKIT=$nowhere cargo build -p worker-cuda --no-default-features --features cuda 2>"$log" ||
    die "the feature cuda builds without a toolkit"
  cat "$log"
  grep -qF "no CUDA toolkit of version 13.0 or newer; looked at: WORKER_CUDA_TOOLKIT ($nowhere): no such folder" "$log"
  WORKER_CUDA_TOOLKIT=$nowhere cargo build -p worker-orcd 2>"$log" || { cat "$log"; return 1; }
  cat "$log"
  grep -qF 'no CUDA toolkit found: building the host backend only' "$log"
  ! readelf --sections --wide "$TARGET/debug/worker-orcd" | grep -q nv_fatbin || die "the worker has device code"
}
