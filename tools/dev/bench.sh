# ./dev bench: decode and prefill of the demo model on this machine.

command_bench() {
  need_build_tools
  need_model
  local cuda=off worker=$TARGET/release/worker-orcd
  if has_nvidia_driver; then
    cuda=on worker=$TARGET/cuda/release/worker-orcd
    need_cuda_wheels
  fi
  step "build" worker_release $cuda
  say "load average $(cut -d' ' -f1-3 /proc/loadavg)"
  "$worker" bench --model "${MODEL:-$DEMO_MODEL}" "$@"
}
