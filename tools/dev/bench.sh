# ./dev bench: decode and prefill of a model on this machine, then the host's kernels by themselves.

command_bench() {
  need_test_tools
  need_model
  local cuda=off worker=$TARGET/release/worker-orcd
  if has_nvidia_driver; then
    cuda=on worker=$TARGET/cuda/release/worker-orcd
    need_cuda_wheels
  fi
  step "build" worker_release $cuda
  step "build of the kernel benches" native_host
  say "load average $(cut -d' ' -f1-3 /proc/loadavg)"
  "$worker" bench --model "${MODEL:-$DEMO_MODEL}" "$@"
  local bench
  for bench in "$NATIVE"/host/bench/*_bench; do
    say
    say "== $(basename "$bench")"
    "$bench"
  done
}
