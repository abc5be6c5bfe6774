# ./dev mutants [FILE…], part of --long: small mistakes are put into the code one at a time; the tests must find them.
# cargo-mutants does the crate, universalmutator cuda/src. A sample as large as MUTANTS_MINUTES allow.

MUTANTS_MINUTES=${MUTANTS_MINUTES:-60}
MUTANTS_ROOMS=(cuda/src/llm/engine cuda/src/llm/ops/sampling{,_check,_scan}.cpp cuda/src/llm/gguf cuda/src/core/vram
  cuda/src/compute/jit cuda/src/llm/model src/scheduler src/seal src/llm/model.rs src/llm/text)

command_mutants() {
  local place
  for place in "$@"; do
    [ -e "$place" ] || die "no file $place"
  done
  need_test_tools
  need_model
  need_nvrtc
  export WCUDA_TEST_MODEL=$DEMO_MODEL
  local begin=$EPOCHREALTIME
  step "native build" native_host
  step "compile commands" native_files
  mutants_steps "$@"
  summary "$begin"
}

# mutants_steps [FILE…]: both languages, half of the time each if both have files.
mutants_steps() {
  local place seconds=$((MUTANTS_MINUTES * 60)) native=() crate=()
  [ $# -gt 0 ] || set -- "${MUTANTS_ROOMS[@]}"
  for place in "$@"; do
    case $place in
      cuda/*) mapfile -t -O ${#native[@]} native < <(host_sources | grep -E "^${place%/}(/|$)") ;;
      *) mapfile -t -O ${#crate[@]} crate < <(find "$place" -name '*.rs' | sort) ;;
    esac
  done
  if [ ${#native[@]} -gt 0 ] && [ ${#crate[@]} -gt 0 ]; then seconds=$((seconds / 2)); fi
  [ ${#native[@]} -eq 0 ] || step "mutants of cuda/src" mutants_native $seconds "${native[@]}"
  [ ${#crate[@]} -eq 0 ] || step "mutants of the crate" mutants_crate $seconds "${crate[@]}"
}

mutants_native() {
  local seconds=$1 work=$TARGET/mutants/native
  shift
  python_tools mutants universalmutator==1.14.1
  cmake --build "$NATIVE/files" --parallel "$JOBS" --target wcuda_tests
  python3 tools/dev/mutants.py list --mutate "$CACHE/python/mutants/bin/mutate" --list "$work/list.jsonl" "$@"
  rm -f "$work/results.jsonl"
  python3 tools/dev/mutants.py run --list "$work/list.jsonl" --build "$NATIVE/files" --work "$work" --jobs "$JOBS" \
    --seconds "$seconds" --seed "${MUTANTS_SEED:-1}" --results "$work/results.jsonl"
}

# In a copy of the tree, which cargo-mutants makes; dependencies are compiled once.
mutants_crate() {
  local seconds=$1 options=() file status=0 tools=$CACHE/cargo-tools
  shift
  for file in "$@"; do options+=(--file "$file"); done
  while IFS= read -r file; do options+=(--exclude-re "$file"); done < <(python3 -c '
import tomllib
rows = tomllib.load(open("tools/dev/mutants.toml", "rb")).get("crate", [])
print(*(row["name"] for row in rows), sep="\n", end="\n" if rows else "")')
  [ -x "$tools/bin/cargo-mutants" ] || cargo install --quiet --locked --root "$tools" cargo-mutants@27.1.0
  CARGO_TARGET_DIR=$TARGET/mutants/crate-target cargo_tested_with_mutants "$seconds" "${options[@]}" || status=$?
  # 2: some are missed; 3: some took too long; 124: the time is over.
  case $status in 0 | 2 | 3 | 124) ;; *) return $status ;; esac
  mutants_crate_report "$TARGET/mutants/crate/mutants.out"
}

cargo_tested_with_mutants() {
  local seconds=$1
  shift
  WORKER_CUDA_NATIVE_DIR=$NATIVE/host/prefix timeout --signal=INT --kill-after=60 "$seconds" \
    "$CACHE/cargo-tools/bin/cargo-mutants" mutants --package worker-cuda --features manifest \
    --output "$TARGET/mutants/crate" --minimum-test-timeout 60 --colors never "$@" -- --lib --tests
}

# At least 90 % of those that compile must be caught; a mutant that never ends is caught too.
mutants_crate_report() {
  local caught missed
  caught=$(cat "$1/caught.txt" "$1/timeout.txt" | wc -l)
  missed=$(wc -l <"$1/missed.txt")
  sed 's/^/survived: /' "$1/missed.txt"
  say "crate mutants: $caught of $((caught + missed)) killed, at least 90% wanted"
  [ $((caught + missed)) -gt 0 ] && [ $((caught * 10)) -ge $(((caught + missed) * 9)) ]
}
