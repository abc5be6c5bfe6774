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

# fuzz_run NAME OPTION…: from the committed corpus, new finds go to the build folder.
fuzz_run() {
  local name=$1 build=$NATIVE/fuzz found=$NATIVE/fuzz/found/$1 dictionary=()
  shift
  mkdir -p "$found"
  [ -e "cuda/fuzz/$name.dict" ] && dictionary=(-dict="cuda/fuzz/$name.dict")
  "$build/fuzz/${name}_fuzz" -artifact_prefix="$build/" $(fuzz_limits "$name") -print_final_stats=1 \
    "${dictionary[@]}" "$@" "$found" "cuda/fuzz/corpus/$name"
}

fuzz_replay() {
  local name
  for name in $(fuzz_targets); do
    say "== $name"
    find "cuda/fuzz/corpus/$name" -type f -print0 |
      xargs -0 -r "$NATIVE/fuzz/fuzz/${name}_fuzz" $(fuzz_limits "$name")
  done
}

# fuzz_share CPU_SECONDS: an eighth of this processor time for each target of ZCTL/1 and for transcripts; the others and
# the C interface share the rest.
fuzz_share() {
  local others own=$(($1 / 8)) share
  others=$(fuzz_targets | grep -vc ^zctl_)
  share=$((($1 - 4 * own) / (others + 1)))
  FUZZ_SECONDS_ZCTL=$own fuzz_all -max_total_time=$share
  fuzz_abi fuzz 20000 $share
  fuzz_transcripts $own
}

# fuzz_transcripts CPU_SECONDS: runs of proptest, by the tests that step "clippy and cargo test, every feature" has built.
fuzz_transcripts() {
  local cases=2000 runs=0 end BASHPID_OF_STEP=$BASHPID
  end=$(($(children_cpu_seconds) + $1))
  while [ $runs = 0 ] || [ "$(children_cpu_seconds)" -lt $end ]; do
    runs=$((runs + 1))
    PROPTEST_CASES=$cases with_clippy cargo_tested test --quiet --workspace \
      --features "$(every_feature)" --test zctl_guest -- $TRANSCRIPT_PROPERTIES
  done
  say "transcripts: $runs runs of $cases cases of each property"
}

# fuzz_abi FOLDER CALLS CPU_SECONDS: runs of so many calls on 1 and 4 threads in turn, each with a seed of its own, at
# least one of both, until the processor time is spent.
fuzz_abi() {
  local build=$NATIVE/$1 seed=0 end BASHPID_OF_STEP=$BASHPID
  end=$(($(children_cpu_seconds) + $3))
  mkdir -p "$build/abi-cache"
  while [ $seed -lt 2 ] || [ "$(children_cpu_seconds)" -lt $end ]; do
    seed=$((seed + 1))
    ASAN_OPTIONS=allocator_may_return_null=1 TSAN_OPTIONS=halt_on_error=1:allocator_may_return_null=1 \
      "$build/fuzz/abi_fuzz" "$2" $((seed % 2 == 1 ? 1 : 4)) $seed "$build/abi-cache"
  done
  say "the C interface: $seed runs of $2 calls"
}

# Processor time of the commands that this shell has waited for.
children_cpu_seconds() {
  # Fields cutime and cstime, in hundredths, of the shell itself, not of the subshell that asks.
  awk '{ sub(/.*\) /, ""); print int(($14 + $15) / 100) }' "/proc/$BASHPID_OF_STEP/stat"
}

# fuzz_all OPTION…: every target with these options, as many at a time as there are cores. FUZZ_SECONDS_ZCTL is the time
# of those of ZCTL/1, where it is set.
fuzz_all() {
  local name pids=() status=0 pid more
  mkdir -p "$NATIVE/fuzz/logs"
  for name in $(fuzz_targets); do
    while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do sleep 0.2; done
    more=()
    [[ $name == zctl_* ]] && more=(${FUZZ_SECONDS_ZCTL:+-max_total_time=$FUZZ_SECONDS_ZCTL})
    (
      TIMEFORMAT="processor time: %U s user, %S s system"
      time fuzz_run "$name" "$@" "${more[@]}"
    ) >"$NATIVE/fuzz/logs/$name.log" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  for name in $(fuzz_targets); do
    say "== $name"
    if [ $status = 0 ]; then
      grep -E '^Done |^stat::|^processor time' "$NATIVE/fuzz/logs/$name.log" || true
    else
      tail -n 40 "$NATIVE/fuzz/logs/$name.log"
    fi
  done
  return $status
}

fuzz_steps() {
  [ -n "$(fuzz_targets)" ] || return 0
  step "fuzz targets" joined "fuzz targets"
  step "fuzz corpora" fuzz_replay
  step_unless_unchanged "fuzz, $1 s of processor time" "$1 $(fingerprint cuda/fuzz cuda/src cuda/include cuda/kernels src/zctl tests/zctl_guest.rs)" \
    fuzz_share "$1"
}
