# ./dev demo: a real model answers on the best backend of this machine.

command_demo() {
  [ $# -eq 0 ] || die "usage: [MODEL=file.gguf] [PROMPT=text] ./dev demo"
  local prompt=${PROMPT:-"Explain in three sentences why the sky is blue."} model=${MODEL:-} worker cuda=off
  need_build_tools
  if [ -z "$model" ]; then
    need_model
    model=$DEMO_MODEL
  fi
  if has_nvidia_driver; then
    cuda=on
    need_cuda_wheels
    # Machine code for the GPU that is here is enough for a demonstration.
    export WORKER_CUDA_ARCHS=${WORKER_CUDA_ARCHS:-$(present_architectures)}
    worker=$TARGET/cuda/release/worker-orcd
  else
    say "no NVIDIA driver answers: building the host backend"
    worker=$TARGET/release/worker-orcd
  fi
  say "building"
  step "build" worker_release $cuda
  say
  say "> $prompt"
  "$worker" run --chat --model "$model" --max-tokens "${MAX_TOKENS:-160}" "$prompt"
}

# The architectures of this machine's GPUs, "90a;120"; empty, which means the fixed list, if nvidia-smi fails.
present_architectures() {
  nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u | tr -d '.' |
    sed 's/^90$/90a/' | paste -sd';' || true
}
