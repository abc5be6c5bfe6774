# ./dev bench: speed of this machine. With a GPU: kernels and whole models, saved in bench/results; --peer DIR (a
# folder with build.sh) in turn with another engine. Without one: the host backend.

command_bench() {
  need_build_tools
  if has_nvidia_driver; then
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
  say "saved in ${out#"$ROOT"/}"
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
