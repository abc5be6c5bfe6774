# Steps: each is timed, its output goes to a log, the first that fails ends the run.

STEP_LOGS=$TARGET/dev
STEP_TIMES=$STEP_LOGS/times # what `times` says of the step that runs and of each `early` that it joined
STEP_NAMES=() STEP_SECONDS=() STEP_CPU_SECONDS=() CLOSING_LINES=() EARLY_PIDS=()

# step NAME COMMAND…: runs it; on failure shows what failed (tools/dev/report_tests.py) and exits.
step() {
  local name=$1 log begin seconds cpu status=0
  shift
  mkdir -p "$STEP_LOGS"
  rm -f "$STEP_TIMES"
  log=$STEP_LOGS/$(printf '%02d' ${#STEP_NAMES[@]})-${name//[^a-zA-Z0-9.-]/_}.log
  begin=$EPOCHREALTIME
  # Not in a condition: the shell would ignore errors inside the command.
  set +e
  (
    (
      set -euo pipefail
      "$@"
    )
    status=$?
    times >>"$STEP_TIMES"
    exit $status
  ) >"$log" 2>&1 </dev/null
  status=$?
  set -e
  seconds=$(elapsed "$begin")
  cpu=$(awk -F '[ms ]+' '{ sum += 60 * ($1 + $3) + $2 + $4 } END { printf "%.1f", sum }' "$STEP_TIMES")
  if [ $status -ne 0 ]; then
    printf 'FAILED  %8s s  %s (exit %d); from %s:\n' "$seconds" "$name" $status "$log"
    python3 tools/dev/report_tests.py failures "$log"
    say "1 step failed: $name"
    exit 1
  fi
  printf 'ok      %8s s, processor %8s s  %s\n' "$seconds" "$cpu" "$name"
  STEP_NAMES+=("$name")
  STEP_SECONDS+=("$seconds")
  STEP_CPU_SECONDS+=("$cpu")
  collect_closing_lines "$name" "$log"
}

# early NAME COMMAND…: begins what a later step waits for (step NAME joined NAME), at low priority, in the time in which
# the steps between leave a core idle.
early() {
  local log=$STEP_LOGS/early-${1//[^a-zA-Z0-9.-]/_}.log
  shift
  mkdir -p "$STEP_LOGS"
  rm -f "$log".*
  set -m # a process group of its own, which ends as a whole
  (
    renice -n 10 "$BASHPID" >/dev/null
    set +e
    (
      set -euo pipefail
      "$@"
    )
    echo $? >"$log.status"
    times >"$log.times"
  ) >"$log" 2>&1 </dev/null &
  set +m
  echo $! >"$log.pid"
  EARLY_PIDS+=($!)
  trap 'for pid in "${EARLY_PIDS[@]}"; do kill -- "-$pid"; done 2>/dev/null || true' EXIT
}

# joined NAME: waits for what `early NAME` began; its output and exit status.
joined() {
  local log=$STEP_LOGS/early-${1//[^a-zA-Z0-9.-]/_}.log status=0
  waited "$1" || status=$?
  cat "$log"
  cat "$log.times" >>"$STEP_TIMES"
  return $status
}

# waited NAME: waits for what `early NAME` began; its exit status.
waited() {
  local log=$STEP_LOGS/early-${1//[^a-zA-Z0-9.-]/_}.log
  tail --pid="$(cat "$log.pid")" -f /dev/null
  return "$(cat "$log.status")"
}

elapsed() { python3 -c "print(f'{$EPOCHREALTIME - $1:.1f}')"; }

# Keeps what the runners report: the totals of cargo test and unittest, lines "N passed, M failed", and the skipped
# tests, one line a reason.
collect_closing_lines() {
  local line
  while IFS= read -r line; do
    CLOSING_LINES+=("$1: $line")
  done < <(
    grep -E '^test result: |^Ran [0-9]+ tests|^[0-9]+ passed, [0-9]+ failed|^skipped [0-9]+: |^Done [0-9]+ runs' "$2" |
      grep -v '^test result: ok. 0 passed; 0 failed; 0 ignored' || true
    python3 tools/dev/report_tests.py skips "$2"
  )
}

# sources_digest: digest of every file that git has or would add, and of the compilers.
sources_digest() {
  {
    { git ls-files -z --cached --others --exclude-standard 2>/dev/null ||
      find . \( -path ./target -o -path ./.cache \) -prune -o -type f -print0; } |
      xargs -0 sha256sum 2>/dev/null || true # deleted files are missing
    "${CXX:-c++}" --version && cargo --version --verbose
  } | sha256sum | cut -d' ' -f1
}

# fingerprint PATH…: digest of these files and folders as they are now.
fingerprint() {
  find "$@" -type f -print0 | sort -z | xargs -0 -r sha256sum | sha256sum | cut -d' ' -f1
}

# Where a passed step keeps the digest of what it depends on.
passed_stamp() { echo "$TARGET/dev/passed/${1//[^a-zA-Z0-9.-]/_}"; }

# unchanged NAME DIGEST: whether that step has passed with this digest.
unchanged() { [ "$(head -n1 "$(passed_stamp "$1")" 2>/dev/null)" = "$2" ]; }

# step_unless_unchanged NAME DIGEST COMMAND…: a long step that already passed with this digest of all
# it depends on is not run again; it says so.
step_unless_unchanged() {
  local name=$1 digest=$2 stamp
  stamp=$(passed_stamp "$1")
  shift 2
  if unchanged "$name" "$digest"; then
    printf 'ok      unchanged   %s (passed %s)\n' "$name" "$(date -r "$stamp" '+%F %H:%M')"
    local line
    while IFS= read -r line; do CLOSING_LINES+=("$line"); done < <(tail -n +2 "$stamp")
    return 0
  fi
  local before=${#CLOSING_LINES[@]}
  step "$name" "$@"
  mkdir -p "$(dirname "$stamp")"
  { echo "$digest"; printf '%s\n' "${CLOSING_LINES[@]:$before}"; } >"$stamp"
}

# A tiny model of each weight format with its logits, in WCUDA_TINY_FORMATS; after need_numpy.
tiny_formats() {
  export WCUDA_TINY_FORMATS=$TARGET/tiny-formats
  step_unless_unchanged "tiny models of each format" "$(fingerprint tools/oracle tools/golden)" \
    "$PYTHON" tools/oracle/tiny_formats.py --out "$WCUDA_TINY_FORMATS"
}

# The end of a run: the ten slowest steps, the total, and the runners' own words.
summary() {
  local begin=$1 i
  say
  say "slowest steps:"
  for i in "${!STEP_NAMES[@]}"; do
    printf '%10s s, processor %8s s  %s\n' "${STEP_SECONDS[$i]}" "${STEP_CPU_SECONDS[$i]}" "${STEP_NAMES[$i]}"
  done | sort -rn | head -10
  printf '%10s s, processor %8s s  in total, load average %s\n' "$(elapsed "$begin")" \
    "$(printf '%s\n' "${STEP_CPU_SECONDS[@]}" | awk '{ sum += $1 } END { printf "%.1f", sum }')" \
    "$(cut -d' ' -f1-3 /proc/loadavg)"
  say
  if [ -e "$STEP_LOGS/device-code.txt" ]; then
    say "device code, slowest files (as compiled last) and size:"
    cat "$STEP_LOGS/device-code.txt"
    say
  fi
  printf '%s\n' "${CLOSING_LINES[@]}"
  say "${#STEP_NAMES[@]} steps passed, 0 failed"
}
