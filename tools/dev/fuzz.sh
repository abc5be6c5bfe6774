# ./dev fuzz, and the fuzzing steps of ./dev test: one libFuzzer target a parser of foreign bytes.
# Targets are cuda/fuzz/NAME_fuzz.cpp, corpora cuda/fuzz/corpus/NAME/.

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

# fuzz_build [FOLDER SANITIZERS TARGET…]: all targets with ASan and UBSan in the folder fuzz unless told otherwise.
fuzz_build() {
  local folder=${1:-fuzz} sanitizers=${2:-address,undefined} targets=("${@:3}")
  [ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(fuzz_targets)
  CC=${CLANG/clang++/clang} CXX=$CLANG native_configure "$folder" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DWCUDA_CUDA=OFF -DWCUDA_BUILD_TESTS=OFF -DWCUDA_BUILD_FUZZERS=ON -DWCUDA_FUZZ_SANITIZERS="$sanitizers"
  cmake --build "$NATIVE/$folder" --parallel "$JOBS" --target "${targets[@]/%/_fuzz}"
}

# fuzz_run NAME OPTION…: from the committed corpus, new finds go to the build folder, FUZZ_FOLDER or fuzz.
fuzz_run() {
  local name=$1 build=$NATIVE/${FUZZ_FOLDER:-fuzz} found dictionary=()
  found=$build/found/$name
  shift
  mkdir -p "$found"
  [ -e "cuda/fuzz/$name.dict" ] && dictionary=(-dict="cuda/fuzz/$name.dict")
  "$build/fuzz/${name}_fuzz" -artifact_prefix="$build/" -timeout=10 -rss_limit_mb=2048 \
    -malloc_limit_mb=64 -print_final_stats=1 "${dictionary[@]}" "$@" "$found" "cuda/fuzz/corpus/$name"
}

fuzz_replay() {
  local name
  for name in $(fuzz_targets); do
    say "== $name"
    find "cuda/fuzz/corpus/$name" -type f -print0 |
      xargs -0 -r "$NATIVE/fuzz/fuzz/${name}_fuzz" -timeout=10 -rss_limit_mb=2048 \
        -malloc_limit_mb=64
  done
}

# fuzz_share CPU_SECONDS: every target for its part of this processor time.
fuzz_share() {
  local targets
  mapfile -t targets < <(fuzz_targets)
  fuzz_all -max_total_time=$(($1 / ${#targets[@]}))
}

# fuzz_all OPTION…: every target with these options, as many at a time as there are cores.
fuzz_all() {
  local name pids=() status=0 pid
  mkdir -p "$NATIVE/fuzz/logs"
  for name in $(fuzz_targets); do
    while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do sleep 0.2; done
    (
      TIMEFORMAT="processor time: %U s user, %S s system"
      time fuzz_run "$name" "$@"
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
  step "fuzz targets" fuzz_build
  step "fuzz corpora" fuzz_replay
  step_unless_unchanged "fuzz, $1 s of processor time" "$1 $(fingerprint cuda/fuzz cuda/src cuda/include cuda/kernels)" \
    fuzz_share "$1"
}
