# ./dev test --stress, part of --long: runs the tests twice while three busy loops per core run. No test may
# depend on elapsed time or on an idle machine.

STRESS_LOOPS_PER_CORE=3

stress_steps() {
  local turn
  for turn in 1 2; do
    step "ctest, busy machine, turn $turn" on_busy_machine ctest_native host --timeout 3600
    step "cargo test, busy machine, turn $turn" on_busy_machine cargo_test --workspace --features "$(every_feature)"
  done
}

# on_busy_machine COMMAND…: the loops end with the command; should this shell be killed, they notice within a second.
on_busy_machine() {
  local parent=$BASHPID i status=0
  STRESS_LOOPS=()
  trap 'kill "${STRESS_LOOPS[@]}" 2>/dev/null' EXIT
  for ((i = 0; i < STRESS_LOOPS_PER_CORE * JOBS; i++)); do
    (
      trap - EXIT
      while kill -0 "$parent" 2>/dev/null; do
        for ((j = 0; j < 100000; j++)); do :; done
      done
    ) &
    STRESS_LOOPS+=($!)
  done
  say "busy loops: ${#STRESS_LOOPS[@]}"
  "$@" || status=$?
  return $status
}
