# ./dev fuzz, and the fuzzing steps of ./dev test: one libFuzzer target a parser of foreign bytes.
# Targets are cuda/fuzz/NAME_fuzz.cpp, corpora cuda/fuzz/corpus/NAME/.

TRANSCRIPT_PROPERTIES="what_any_guest_does_replays changed_transcripts_are_survived any_text_is_survived"

command_fuzz() {
  need_build_tools
  need_clang
  local seconds=${SECONDS_EACH:-600} name
  fuzz_build
  for name in ${TARGET_NAME:-$(fuzz_targets)}; do
    say "== $name, $seconds s"
    fuzz_run "$name" -max_total_time="$seconds"
  done
}

fuzz_targets() {
  local source
  for source in cuda/fuzz/*_fuzz.cpp; do
    [ -e "$source" ] && basename "$source" _fuzz.cpp
  done
  return 0
}

# fuzz_build [FOLDER SANITIZERS TARGET…]: builds targets; default: all, with ASan and UBSan, in the folder fuzz.
fuzz_build() {
  local folder=${1:-fuzz} sanitizers=${2:-address,undefined} targets=()
  # ThreadSanitizer has something to find in the C interface alone.
  [ "$sanitizers" = thread ] || mapfile -t targets < <(fuzz_targets)
  CC=${CLANG/clang++/clang} CXX=$CLANG native_configure "$folder" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DWCUDA_CUDA=OFF -DWCUDA_BUILD_TESTS=OFF -DWCUDA_BUILD_FUZZERS=ON -DWCUDA_FUZZ_SANITIZERS="$sanitizers"
  cmake --build "$NATIVE/$folder" --parallel "$JOBS" --target "${targets[@]/%/_fuzz}" abi_fuzz
}

# fuzz_limits NAME: what an input may cost. A session's memory, frames and buffers have at most 64 KiB in the targets of
# ZCTL/1, and these keep no more than the latest answer.
fuzz_limits() {
  local allocation_mb=64
  [[ $1 == zctl_* ]] && allocation_mb=1
  echo -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=$allocation_mb
}

# fuzz_command NAME OPTION…: sets FUZZ_COMMAND, which runs a target from the committed corpus; new finds go to the build
# folder.
fuzz_command() {
  local name=$1 build=$NATIVE/fuzz found=$NATIVE/fuzz/found/$1 dictionary=()
  shift
  mkdir -p "$found"
  [ -e "cuda/fuzz/$name.dict" ] && dictionary=(-dict="cuda/fuzz/$name.dict")
  FUZZ_COMMAND=("$build/fuzz/${name}_fuzz" -artifact_prefix="$build/" $(fuzz_limits "$name") -print_final_stats=1
    "${dictionary[@]}" "$@" "$found" "cuda/fuzz/corpus/$name")
}

fuzz_run() {
  fuzz_command "$@"
  "${FUZZ_COMMAND[@]}"
}

# fuzz_for NAME CPU_SECONDS: a target until it has used this processor time, however busy the machine is. At SIGUSR1
# libFuzzer ends after the input at hand, with success. Its limit for an input is the clock's, which at low priority runs
# much faster than the input.
fuzz_for() {
  local name=$1 pid seconds log
  log=$(mktemp)
  fuzz_command "$name" -timeout=300
  "${FUZZ_COMMAND[@]}" >"$log" 2>&1 &
  pid=$!
  while sleep 0.5 && seconds=$(cpu_seconds $pid own) && [ "$seconds" -lt "$2" ]; do :; done
  kill -USR1 $pid 2>/dev/null || true # it may have found something and ended
  wait $pid || { cat "$log"; return 1; }
  awk -v name="$name" -v limit="$2" '/^stat::/ { print }
    /^stat::number_of_executed_units/ { print "Done " $2 " runs of " name " in " limit " s of processor time" }' "$log"
  rm "$log"
}

fuzz_replay() {
  local name
  for name in $(fuzz_targets); do
    say "== $name"
    find "cuda/fuzz/corpus/$name" -type f -print0 |
      xargs -0 -r "$NATIVE/fuzz/fuzz/${name}_fuzz" $(fuzz_limits "$name")
  done
}

# fuzz_share CPU_SECONDS: the targets' and the C interface's part of this processor time, the longest first. An eighth is
# for each target of ZCTL/1 and for transcripts; the others and the C interface share the rest.
fuzz_share() {
  local own=$(($1 / 8)) share name jobs=() parsers=()
  for name in $(fuzz_targets); do
    if [[ $name == zctl_* ]]; then jobs+=("fuzz_for $name $own"); else parsers+=("$name"); fi
  done
  share=$((($1 - 4 * own) / (${#parsers[@]} + 1)))
  for name in "${parsers[@]}"; do jobs+=("fuzz_for $name $share"); done
  jobs+=("fuzz_abi fuzz 20000 1 $((share / 2))" "fuzz_abi fuzz 20000 4 $((share / 2))")
  fuzz_jobs "${jobs[@]}"
}

# fuzz_transcripts PROGRAM CPU_SECONDS: runs of proptest by this test program, until the processor time is spent.
fuzz_transcripts() {
  local cases=1000 runs=0 end pid=$BASHPID log
  log=$(mktemp)
  end=$(($(cpu_seconds $pid children) + $2))
  while [ $runs = 0 ] || [ "$(cpu_seconds $pid children)" -lt $end ]; do
    runs=$((runs + 1))
    PROPTEST_CASES=$cases "$1" --quiet $TRANSCRIPT_PROPERTIES >"$log" 2>&1 || { cat "$log"; return 1; }
  done
  rm "$log"
  say "Done $runs runs of $cases transcripts of each property"
}

# The test program of the transcripts, as the step "clippy and cargo test, every feature" has built it.
transcripts_program() {
  with_clippy cargo_tested test --quiet --no-run --message-format=json --workspace --features "$(every_feature)" \
    --test zctl_guest | python3 -c '
import json, sys
for message in map(json.loads, sys.stdin):
    if message.get("executable") and message["target"]["src_path"] == sys.argv[1]:
        print(message["executable"])' "$ROOT/tests/zctl_guest.rs"
}

# fuzz_abi FOLDER CALLS THREADS CPU_SECONDS: runs of so many calls, each with a seed of its own, until the processor time
# is spent, at least one.
fuzz_abi() {
  local build=$NATIVE/$1 seed=0 end pid=$BASHPID
  end=$(($(cpu_seconds $pid children) + $4))
  mkdir -p "$build/abi-cache-$3"
  while [ $seed = 0 ] || [ "$(cpu_seconds $pid children)" -lt $end ]; do
    seed=$((seed + 1))
    ASAN_OPTIONS=allocator_may_return_null=1 TSAN_OPTIONS=halt_on_error=1:allocator_may_return_null=1 \
      "$build/fuzz/abi_fuzz" "$2" "$3" $seed "$build/abi-cache-$3"
  done
  say "Done $seed runs of $2 calls of the C interface, threads: $3"
}

# cpu_seconds PID own|children: processor time of a process, or of those it has waited for; fails where it has ended.
cpu_seconds() {
  local first=14
  [ "$2" = own ] || first=16
  awk -v first=$first '{ sub(/.*\) /, ""); print int(($(first - 2) + $(first - 1)) / 100) }' "/proc/$1/stat" 2>/dev/null
}

# fuzz_jobs COMMAND_LINE…: these in their order, as many at a time as there are cores. Shows the closing lines of each, or
# the end of what those that failed have printed. Each writes its exit status to a file: bash forgets the status of a
# process that ended long ago when another one gets its number.
fuzz_jobs() {
  local job status=0 log logs=$NATIVE/fuzz/logs
  local TIMEFORMAT="processor time: %U s user, %S s system"
  mkdir -p "$logs"
  rm -f "$logs"/*.status
  for job in "$@"; do
    while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do sleep 0.2; done
    log=$logs/${job// /_}.log
    (
      trap 'echo $? >"$log.status"' EXIT
      time $job
    ) >"$log" 2>&1 &
  done
  wait
  for job in "$@"; do
    log=$logs/${job// /_}.log
    say "== $job"
    if [ "$(cat "$log.status" 2>/dev/null)" = 0 ]; then
      grep -E '^Done |^stat::|^processor time' "$log" || true
    else
      status=1
      tail -n 40 "$log"
    fi
  done
  return $status
}

# Every target with these options.
fuzz_all() {
  local name jobs=()
  for name in $(fuzz_targets); do jobs+=("fuzz_run $name $*"); done
  fuzz_jobs "${jobs[@]}"
}

# Fuzzing takes a quarter of the run's processor time: at the lowest priority it uses what the other steps leave idle.
fuzz_early() {
  FUZZ_STEP="fuzz, $1 s of processor time"
  FUZZ_DIGEST="$1 $(fingerprint cuda/fuzz cuda/src cuda/include cuda/kernels src/zctl tests/zctl_guest.rs)"
  unchanged "$FUZZ_STEP" "$FUZZ_DIGEST" || early "fuzz" when_idle fuzz_share "$1"
}

# After the step that has built them. Their program is looked up here: Cargo locks its folder, for which the next step
# would wait if Cargo ran at low priority.
fuzz_early_transcripts() {
  unchanged "$FUZZ_STEP" "$FUZZ_DIGEST" && return
  early "transcripts" when_idle fuzz_transcripts "$(transcripts_program)" $(($1 / 8))
}

# when_idle COMMAND…: at the lowest priority, once the targets are built.
when_idle() {
  renice -n 19 "$BASHPID" >/dev/null
  waited "fuzz targets"
  "$@"
}

fuzz_joined() {
  joined fuzz
  joined transcripts
}

fuzz_steps() {
  step "fuzz targets" joined "fuzz targets"
  step "fuzz corpora" fuzz_replay
  step_unless_unchanged "$FUZZ_STEP" "$FUZZ_DIGEST" fuzz_joined
}
