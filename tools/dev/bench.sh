# ./dev bench: speed of this machine. With a GPU: kernels and whole models, saved in bench/results; --peer DIR (a
# folder with build.sh) in turn with another engine. Without one: the host backend. --cpu-peer: whole models on the
# host backend, in turn with llama.cpp.

command_bench() {
  need_build_tools
  if [ "${1:-}" = --cpu-peer ]; then
    bench_cpu_peer "${@:2}"
  elif has_nvidia_driver; then
    bench_gpu "$@"
  else
    bench_host "$@"
  fi
}

# Further options are those of gpu-bench.sh.
bench_gpu() {
  local archs=${WORKER_CUDA_ARCHS:-90a} out
  need_test_tools
  need_cuda_wheels
  step "native build with CUDA" native_cuda "$archs"
  out=$ROOT/bench/results/$(date -u +%F)-$(gpu_slug)
  tools/dev/gpu-bench.sh --bin "$NATIVE/cuda-${archs//;/-}/bench" --out "$out" "$@"
  bench_gpu_serve "$NATIVE/cuda-${archs//;/-}" "$out"
  say "saved in ${out#"$ROOT"/}"
}

# bench_gpu_serve NATIVE OUT: a server with a model of random weights.
bench_gpu_serve() {
  local model=$1/serve.gguf
  "$1/bench/e2e_bench" --write 8b:q4_k_m "$model"
  WORKER_CUDA_NATIVE_DIR=$1/prefix cargo bench --quiet -p worker-orcd --features cuda --bench serve -- --model "$model" \
    http mixed prefix | tee "$2/serve.txt"
  rm "$model"
}

# "h200" for "NVIDIA H200".
gpu_slug() {
  nvidia-smi --query-gpu=name --format=csv,noheader | head -n1 |
    tr '[:upper:] ' '[:lower:]-' | sed 's/^nvidia-//; s/[^a-z0-9.-]//g'
}

bench_host() {
  need_test_tools
  need_model
  need_numpy
  step "build" worker_release off
  step "build of the benches" native_host
  say "load average $(cut -d' ' -f1-3 /proc/loadavg)"
  "$TARGET/release/worker-orcd" bench --model "${MODEL:-$DEMO_MODEL}" "$@"
  say
  cargo_tested bench --quiet --features constraints,zctl --bench masks --bench scheduler --bench zctl_replay
  say
  say "== serve"
  bench_serve events http many
  local bench
  for bench in "$NATIVE"/host/bench/*_bench; do
    say
    say "== $(basename "$bench")"
    case $bench in
      */host_compute_bench) "$PYTHON" tools/dev/host_compare.py "$bench" ;; # compared with numpy
      */zctl_bench) "$bench" host "$TARGET/release/worker-orcd" ;;
      *) "$bench" ;;
    esac
  done
}

# bench_serve PART…: worker/benches/serve on the host's engine.
bench_serve() {
  cargo_tested bench --quiet -p worker-orcd --bench serve -- --model "${MODEL:-$DEMO_MODEL}" streams=8 depth=32 tokens=64 \
    turns=5 repeat=1 batch=256 kv-tokens=40000 http-percent-10=30 "$@"
}

# bench_cpu_peer [--formats LIST] [OPTION…]: further options are those of cpu_peer.py; with --rows FILE the formats may
# be measured in several calls. What is fetched and built stays in .cache/cpu-peer.
bench_cpu_peer() {
  local folder=$CACHE/cpu-peer formats=Q4_0,Q4_1,Q5_0,Q5_1,Q8_0,Q2_K,Q3_K_M,Q4_K_M,Q5_K_M,Q6_K,IQ4_XS,IQ3_S,F16,BF16,MXFP4,SmolLM2
  local models=() format file
  if [ "${1:-}" = --formats ]; then
    formats=$2
    shift 2
  fi
  need_test_tools
  need_model
  need_coder_model
  need_peer_source "$folder"
  step "build of the benches" native_host
  [ "$folder/build/cpu_peer" -nt cuda/bench/cpu_peer.cpp ] &&
    [ "$folder/build/cpu_peer" -nt tools/dev/cpu_peer_build.sh ] ||
    step "build of llama.cpp" tools/dev/cpu_peer_build.sh "$folder/source" "$folder/build"
  for format in ${formats//,/ }; do
    file=$folder/models/$format.gguf
    [ "$format" = SmolLM2 ] && file=$DEMO_MODEL
    [ "$format" = Q4_K_M ] && file=$CODER_MODEL
    [ -e "$file" ] || step "$format" make_cpu_peer_model "$folder" "$format" "$file"
    models+=("$format=$file")
  done
  say "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n1), $(date -u +%F), $(git rev-parse --short HEAD)"
  python3 tools/dev/cpu_peer.py --bench "$NATIVE/host/bench" --peer "$folder/build" --busy Q4_K_M,SmolLM2 "$@" \
    "${models[@]}"
}

# make_cpu_peer_model FOLDER FORMAT FILE: a variant of the model by the peer's quantizer; MXFP4 of random blocks, since
# that one gives it to experts only.
make_cpu_peer_model() {
  local -A types=([F16]=1 [Q4_0]=2 [Q4_1]=3 [Q8_0]=7 [Q5_0]=8 [Q5_1]=9 [Q2_K]=10 [Q3_K_M]=12 [Q5_K_M]=17 [Q6_K]=18
    [IQ3_S]=26 [IQ4_XS]=30 [BF16]=32)
  mkdir -p "$1/models"
  if [ "$2" = MXFP4 ]; then
    "$NATIVE/host/bench/e2e_bench" --write 0.5b:mxfp4 "$3.part"
  else
    [ -n "${types[$2]:-}" ] || die "no format $2"
    "$1/build/cpu_peer" "$1/build/libggml-cpu-avx2.so" quantize "$CODER_MODEL" "$3.part" "${types[$2]}"
  fi
  mv "$3.part" "$3"
}

# need_peer_source FOLDER: llama.cpp as the source package of llama-cpp-python carries it, in FOLDER/source.
need_peer_source() {
  [ -e "$1/source/complete" ] && return 0
  say "fetching the source of llama-cpp-python 0.3.36 from PyPI (70 MB)"
  rm -rf "$1/source" "$1/download"
  mkdir -p "$1/source"
  python3 -m pip download -q --disable-pip-version-check --no-deps --no-binary llama-cpp-python -d "$1/download" \
    llama-cpp-python==0.3.36
  tar xzf "$1"/download/llama_cpp_python-*.tar.gz -C "$1/source" --strip-components=3 --wildcards '*/vendor/llama.cpp/*'
  rm -rf "$1/download"
  touch "$1/source/complete"
}
