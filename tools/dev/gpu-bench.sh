#!/usr/bin/env bash
# Measures the machine it runs on, with benches that are built already; needs no Cargo. ./dev bench calls it, and
# the GPU pack holds it as bench.sh.
#
#   gpu-bench.sh [--bin FOLDER] [--out FOLDER] [--folder FOLDER] [--peer FOLDER] [--alternations N] [--models LIST]
#                [--skip-kernels]
#
# --bin           *_bench programs (default: bench/ next to this script)
# --out           where NAME.txt, e2e.txt, e2e.json and draft.txt go (default: results/ next to this script)
# --folder        room for the largest model as a file, 43 GB for 70b (default: /dev/shm, else /tmp)
# --peer          holds build.sh, which builds another engine's llama-bench and llama-batched-bench into
#                 FOLDER/b/bin; they run in turn with ours on the same files
# --alternations  turns with a peer (5)
# --models        SHAPE:MIX, separated by commas (those of the table in docs/PERFORMANCE.md)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ -e "$here/pack.tar.xz" ] && ! [ -e "$here/tree" ]; then
  (cd "$here" && { tar -xJf pack.tar.xz 2>/dev/null || python3 -m tarfile -e pack.tar.xz .; })
fi
bin=$here/bench out=$here/results folder="" peer="" alternations=5 kernels=1
models=8b:q4_k_m,8b:q8_0,1b:q4_k_m,8b:f16,1b:f16,70b:q4_k_m,135m:q4_1
report=$here/bench_report.py

while [ $# -gt 0 ]; do
  case $1 in
    --bin | --out | --folder | --peer | --alternations | --models)
      [ $# -ge 2 ] || { echo "gpu-bench: $1 needs a value" >&2; exit 2; }
      declare "${1#--}=$2"
      shift 2
      ;;
    --skip-kernels) kernels=0 && shift ;;
    *) echo "gpu-bench: no option \"$1\"" >&2 && exit 2 ;;
  esac
done
if [ -z "$folder" ]; then
  folder=/tmp
  [ -w /dev/shm ] && [ "$(df --output=avail -k /dev/shm | tail -1)" -gt 45000000 ] && folder=/dev/shm
fi
mkdir -p "$out"

works_of() { # what of a model is measured with a peer
  case $1 in
    8b:q4_k_m) echo load,first,decode,streams,prefill,host ;;
    70b:*) echo "load,decode,streams,prefill:streams=8,64;prompts=512,2048" ;;
    135m:*) echo load,decode,prefill,host ;;
    *) echo load,decode,streams,prefill ;;
  esac
}

more_works_of() { # and without one
  [ "$1" = 8b:q4_k_m ] || return 0
  printf '%s\n' "mixed,shared" "decode:depths=65536,130000" "decode:kv=q8_0;depths=16384,65536" \
    "decode:kv=fp8;depths=16384,65536" "streams,prefill:batch-invariant=on;streams=1,64;prompts=2048"
}

describe_machine() {
  date -u '+%Y-%m-%d %H:%M UTC'
  if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu,power.draw \
      --format=csv
  fi
  grep -m1 'model name' /proc/cpuinfo || true
  echo "$(nproc) processors, load average $(cut -d' ' -f1-3 /proc/loadavg)"
}

# Every *_bench of kernels, once per list of arguments.
bench_kernels() {
  local bench name arguments list
  for bench in "$bin"/*_bench; do
    name=$(basename "$bench")
    case $name in
      draft_bench | e2e_bench | host_* | sampling_bench) continue ;; # whole models, the host
      linear_bench) set -- layers shapes ;;
      gemm_bench) set -- "" "-m 30b-a3b" ;;
      memory_bench | zctl_bench) set -- cuda ;;
      compute_bench) set -- "${WCUDA_TEST_NVRTC:-}" ;; # the folder of NVRTC
      *) set -- "" ;;
    esac
    : >"$out/$name.txt"
    for arguments; do
      echo "== $name $arguments"
      read -ra list <<<"$arguments"
      [ "$name" != compute_bench ] || list=(${arguments:+"$arguments"}) # may have spaces
      timeout 300 "$bench" "${list[@]}" 2>&1 | tee -a "$out/$name.txt" || echo "$name failed"
    done
  done
}

# Ours alone: one run, five measurements of each row.
bench_alone() {
  local specs=() model works
  for model in ${models//,/ }; do
    for works in "$(works_of "$model")" $(more_works_of "$model"); do specs+=("$model:$works"); done
  done
  "$bin/e2e_bench" --folder "$folder" --json "$out/e2e.json" "${specs[@]}" 2>&1 | tee "$out/e2e.txt"
}

# Steps with draft tokens, of one stream and of 64, if 8B Q4_K_M is among the models.
bench_drafts() {
  local options
  [[ ,$models, == *,8b:q4_k_m,* ]] || return 0
  for options in "" "--depth 4096" "--streams 64 --tokens 256"; do
    "$bin/draft_bench" $options --draft-model 1b:q4_k_m 8b:q4_k_m 2>&1 || echo "draft_bench $options failed"
  done | tee "$out/draft.txt"
}

# peer_runs MODEL FILE PREFIX: the peer's rows of a model, as JSON lines.
peer_runs() {
  local model=$1 file=$2 prefix=$3 depths=0 prompts=512,2048 streams="" stderr
  stderr=$out/peer.log
  case $model in
    8b:q4_k_m) depths=0,4096,16384 prompts=512,2048,8192 streams=1,4,8,16,32,64,128,256 ;;
    8b:q8_0 | 1b:*) streams=1,4,8,16,32,64,128,256 ;;
    70b:*) prompts=512 ;;
  esac
  "$peer_bin/llama-bench" -m "$file" -ngl 99 -fa 1 -p 0 -n 128 -d "$depths" -r 3 -o jsonl \
    >"$prefix-decode.jsonl" 2>>"$stderr"
  "$peer_bin/llama-bench" -m "$file" -ngl 99 -fa 1 -p "$prompts" -n 0 -r 3 -o jsonl \
    >"$prefix-prefill.jsonl" 2>>"$stderr"
  PEER_FORCE_CUBLAS=1 "$peer_bin/llama-bench" -m "$file" -ngl 99 -fa 1 -p "$prompts" -n 0 -r 3 -b 8192 -ub 2048 \
    -o jsonl >"$prefix-prefill-cublas.jsonl" 2>>"$stderr"
  [ -z "$streams" ] || "$peer_bin/llama-batched-bench" -m "$file" -ngl 99 -fa on -c 140000 -b 2048 -ub 512 \
    -npp 128 -ntg 64 -npl "$streams" --output-format jsonl 2>>"$stderr" | grep '^{' >"$prefix-streams.jsonl"
}

# Turn by turn, model by model, so that both engines meet the same state of the machine.
bench_with_peer() {
  local model file turn peer_bin=$peer/b/bin raw=$out/raw
  [ -x "$peer_bin/llama-bench" ] || peer_bin=$out/../peer-build/b/bin
  [ -x "$peer_bin/llama-bench" ] || "$peer/build.sh" "${peer_bin%/b/bin}" >"$out/peer-build.log" 2>&1
  mkdir -p "$raw"
  for model in ${models//,/ }; do
    file=$folder/peer-${model/:/-}.gguf
    rm -f "$raw"/*-"${model/:/-}"-*
    "$bin/e2e_bench" --write "$model" "$file"
    for turn in $(seq "$alternations"); do
      echo "== $model, turn $turn of $alternations"
      "$bin/e2e_bench" --repeat 3 --folder "$folder" --json "$raw/ours-${model/:/-}-$turn.json" \
        "$model:$(works_of "$model")" || echo "e2e_bench failed"
      peer_runs "$model" "$file" "$raw/peer-${model/:/-}-$turn" || echo "the peer failed"
    done
    rm -f "$file"
    python3 "$report" "$raw" "$out/e2e.json" >"$out/e2e.txt" # what there is so far
  done
  cat "$out/e2e.txt"
}

describe_machine | tee "$out/machine.txt"
[ $kernels = 0 ] || bench_kernels
if [ -n "$peer" ]; then bench_with_peer; else bench_alone; fi
bench_drafts
