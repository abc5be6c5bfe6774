# ./dev gpu-pack: stripped binaries for a machine that has a GPU and nothing else, at most 60 MiB: run.sh tests,
# bench.sh measures. All but the scripts is in one archive, for the binaries hold the same device code: packed it is
# there once.

GPU_PACK_BYTES_MAX=$((60 * 1024 * 1024))

command_gpu_pack() {
  local archs=${WORKER_CUDA_ARCHS:-90a} pack=$TARGET/gpu-pack native binary
  need_test_tools
  need_cuda_wheels
  native=$NATIVE/cuda-${archs//;/-}
  export WORKER_CUDA_ARCHS=$archs
  step "native build with CUDA" native_cuda "$archs"
  step "worker with CUDA" gpu_pack_worker "$native"
  rm -rf "$pack"
  mkdir -p "$pack/tests" "$pack/bench" "$pack/guests"
  for binary in wcuda_tests wcuda_gpu_fault_test wcuda_hello; do
    strip -o "$pack/$binary" "$native/tests/$binary"
  done
  strip -o "$pack/worker-orcd" "$TARGET/release/worker-orcd"
  for binary in "$native"/tests/{,lib}wcuda_guest_*; do
    [ -x "$binary" ] && [ -f "$binary" ] && strip -o "$pack/guests/${binary##*/}" "$binary"
  done
  cp cuda/tests/zctl/guest_test.py "$pack/guests"
  for binary in "$native"/bench/*_bench; do
    case ${binary##*/} in host_* | sampling_bench) continue ;; esac # measure the host
    [ -x "$binary" ] && strip -o "$pack/bench/$(basename "$binary")" "$binary"
  done
  step "Rust tests with CUDA" gpu_pack_rust_tests "$native" "$pack/tests"
  need_numpy
  tiny_formats
  gpu_pack_tree "$pack/tree"
  cp tools/dev/bench_report.py "$pack"
  gpu_pack_python "$pack"
  du -ah "$pack" | sort -rh | sed -n 1,30p # reads all: a closed pipe would end the script
  step "archive" gpu_pack_archive "$pack" "$ROOT/.gpu-pack"
  local bytes
  bytes=$(du -sb .gpu-pack | cut -f1)
  [ "$bytes" -le $GPU_PACK_BYTES_MAX ] || die ".gpu-pack is $bytes bytes, at most $GPU_PACK_BYTES_MAX"
  say ".gpu-pack: $bytes bytes"
}

# gpu_pack_worker NATIVE: the worker, linked with the archive that the native tests have.
gpu_pack_worker() { WORKER_CUDA_NATIVE_DIR=$1/prefix cargo build --release -p worker-orcd --features cuda; }

# gpu_pack_archive FROM TO: the scripts as they are, each unpacks the rest when it is not there yet.
gpu_pack_archive() {
  local name
  need xz=xz-utils
  rm -rf "$2"
  mkdir -p "$2"
  # The dictionary reaches back over several binaries.
  tar -c -C "$1" . | xz -T1 --lzma2=preset=3,dict=128MiB >"$2/pack.tar.xz"
  for name in run bench fidelity sanitize; do cp "tools/dev/gpu-$name.sh" "$2/$name.sh"; done
}

# The files that tests read, by the paths compiled into them: run.sh puts a link at this place.
gpu_pack_tree() {
  local folder
  for folder in cuda/tests/data cuda/fuzz/corpus cuda/include examples/kernels-science tests; do
    [ -d $folder ] || continue
    mkdir -p "$1/$folder"
    cp -r $folder/. "$1/$folder"
  done
  find "$1/tests" -name '*.rs' -delete
  echo "$ROOT" >"$1/place.txt"
}

# The oracle of fidelity.sh, and the file reader it needs, which is all Python; numpy is the machine's. And the tiny
# models of each format with their logits.
gpu_pack_python() {
  local site package
  site=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  mkdir -p "$1/python" "$1/tree/tools/oracle"
  for package in gguf yaml; do cp -r "$site/$package" "$1/python"; done
  find "$1/python" \( -name __pycache__ -o -name scripts -o -name '*.so' \) -prune -exec rm -rf {} +
  cp tools/oracle/{fidelity,forward,extra_types,greedy}.py "$1/tree/tools/oracle"
  cp -r "$TARGET/tiny-formats" "$1/tree"
}

# The Rust test files that have tests for a device (named gpu_…), linked with the archive that has CUDA. The feature keeps
# them apart from those of ./dev test, and lets both share the compiled dependencies.
gpu_pack_rust_tests() {
  local name path files=()
  for path in $(grep -l '^fn gpu_' tests/*.rs); do files+=(--test "$(basename "$path" .rs)"); done
  WORKER_CUDA_NATIVE_DIR=$1/prefix cargo test -p worker-cuda --features cuda,manifest,constraints "${files[@]}" --no-run \
    --message-format=json >"$TARGET/dev/gpu-pack.json"
  python3 - "$TARGET/dev/gpu-pack.json" <<'PYTHON' | while read -r name path; do
import json, sys
for line in open(sys.argv[1]):
    message = json.loads(line)
    if message.get("profile", {}).get("test") and message.get("executable"):
        print(message["target"]["name"], message["executable"])
PYTHON
    strip -o "$2/$name" "$path"
  done
}
