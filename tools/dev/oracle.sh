# ./dev oracle: remakes the golden files from external engines; nothing in ./dev test needs them.

command_oracle() {
  need_build_tools
  need_model
  export WCUDA_TEST_MODEL=$DEMO_MODEL
  local script
  for script in tools/oracle/make_*.sh; do
    [ -e "$script" ] || die "no tools/oracle/make_*.sh"
    say "== $script"
    source "$script"
  done
}
