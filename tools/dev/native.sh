# The native library in the configurations that the commands use; one build folder each.

NATIVE=$TARGET/native

# native_configure NAME OPTION…: configures cuda/ in its folder, again if the options changed.
native_configure() {
  local name=$1 folder=$NATIVE/$1 fresh=()
  shift
  local settings="$* ${CXX:-} ${CXXFLAGS:-}"
  [ "$(cat "$folder/settings.txt" 2>/dev/null)" = "$settings" ] || fresh=(--fresh)
  mkdir -p "$folder"
  cmake -S cuda -B "$folder" -G Ninja "${fresh[@]}" -DCMAKE_INSTALL_LIBDIR=lib \
    -DCMAKE_INSTALL_PREFIX="$folder/prefix" "$@"
  echo "$settings" >"$folder/settings.txt"
}

# Host backend with its tests and benches, installed in target/native/host/prefix for the Rust tests to link. Most folders
# of the library are one translation unit each, as in Cargo's build.
native_host() {
  native_configure host -DCMAKE_BUILD_TYPE=Release -DWCUDA_CUDA=OFF -DWCUDA_BUILD_TESTS=ON \
    -DWCUDA_BUILD_BENCH=ON -DWCUDA_COMPILE_LIBRARY_BY_FOLDER=ON
  cmake --build "$NATIVE/host" --parallel "$JOBS"
  cmake --install "$NATIVE/host"
}

# The host backend with each file of the library alone: configured for its compile commands, built for mutants.
native_files() {
  native_configure files -DCMAKE_BUILD_TYPE=Release -DWCUDA_CUDA=OFF -DWCUDA_BUILD_TESTS=ON
}

# The files of cuda/src that the host configuration compiles; after native_files.
host_sources() {
  python3 -c '
import json, sys
root = sys.argv[1] + "/"
files = {row["file"].removeprefix(root) for row in json.load(open(sys.argv[2]))}
print(*sorted(name for name in files if name.startswith("cuda/src/")), sep="\n")' "$ROOT" "$NATIVE/files/compile_commands.json"
}

# native_cuda ARCHS: with CUDA, the tests and the benches.
native_cuda() {
  native_configure "cuda-${1//;/-}" -DCMAKE_BUILD_TYPE=Release -DWCUDA_CUDA=ON \
    -DWCUDA_CUDA_TOOLKIT="$WORKER_CUDA_TOOLKIT" -DCMAKE_CUDA_ARCHITECTURES="$1" \
    -DWCUDA_BUILD_TESTS=ON -DWCUDA_BUILD_BENCH=ON
  cmake --build "$NATIVE/cuda-${1//;/-}" --parallel "$JOBS"
  cmake --install "$NATIVE/cuda-${1//;/-}"
}

# ctest_native NAME OPTION…: the tests of a configuration. What each printed is in its folder's tests.log; here are the
# skipped ones by reason and the failed ones with their assertions.
ctest_native() {
  local folder=$NATIVE/$1 status=0
  shift
  rm -f "$folder/tests.xml"
  ctest --test-dir "$folder" --quiet --output-log "$folder/tests.log" --output-junit "$folder/tests.xml" \
    --test-output-size-passed 4096 --no-tests=error --parallel "$JOBS" "$@" || status=$?
  python3 tools/dev/report_tests.py ctest "$folder" || status=1
  return $status
}

# The Rust side of the tests links the archive that ctest tested, instead of compiling it again for
# each set of features.
cargo_tested() { WORKER_CUDA_NATIVE_DIR=$NATIVE/host/prefix cargo "$@"; }

# cargo_test OPTION…: runs all tests, also after one failed; the output of those that passed says what was skipped.
cargo_test() { cargo_tested test --quiet --no-fail-fast "$@" -- --show-output; }

# The worker as users build it. worker_release on|off; with CUDA it lands in target/cuda/release. Both
# share target/release, so that no dependency is compiled twice.
worker_release() {
  if [ "$1" = on ]; then
    WORKER_CUDA_BUILD=on cargo build --release -p worker-orcd --features cuda
    mkdir -p "$TARGET/cuda/release"
    cp "$TARGET/release/worker-orcd" "$TARGET/cuda/release/worker-orcd"
  else
    WORKER_CUDA_BUILD=off cargo build --release -p worker-orcd
  fi
}
