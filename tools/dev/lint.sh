# ./dev lint: format, layers, ABI note, symbols, words, clang-tidy of the changed files.

command_lint() {
  need_build_tools
  need_rust_components
  local begin=$EPOCHREALTIME
  lint_steps
  summary "$begin"
}

# ./dev test begins with these.
lint_steps() {
  step "lint" lint_checks
  step "set-up: clang-format" need_clang_format
  step "clang-format" clang_format --dry-run -Werror
  step "rustfmt" cargo fmt --all --check
  step "native build" native_host
  step "symbols" lint_symbols "$NATIVE/host/libworker_cuda.a"
  local changed
  step "compile commands" native_files
  changed=$(comm -12 <(clang_tidy_sources | sort) <(changed_files))
  if [ -n "$changed" ]; then step "clang-tidy of changed files" clang_tidy $changed; fi
}

# What differs from the remote's main, or without a remote from the commit before.
changed_files() {
  local base
  base=$(git merge-base HEAD origin/main 2>/dev/null || git rev-parse HEAD~1 2>/dev/null || echo HEAD)
  { git diff --name-only --diff-filter=d "$base" && git ls-files --others --exclude-standard; } 2>/dev/null | sort -u
}

# What the host configuration compiles; not the loops for one instruction set each, which take options of gcc.
clang_tidy_sources() { host_sources | grep -vE 'kernels_[a-z0-9]+\.cpp$|host_tile|_avx'; }

# clang_tidy FILE…: with the checks of .clang-tidy, as the host configuration compiles them.
clang_tidy() {
  python_tools clang-tidy clang-tidy==18.1.8
  printf '%s\0' "$@" | xargs -0 -n 4 -P "$JOBS" "$CACHE/python/clang-tidy/bin/clang-tidy" -p "$NATIVE/files" \
    --quiet --warnings-as-errors='*'
}

# What needs no build.
lint_checks() {
  python3 tools/lint/layers.py
  python3 tools/lint/abi_note.py
  python3 tools/abi/generate.py --check
  python3 tools/lint/words.py
  python3 tools/lint/examples.py
  python3 tools/lint/results.py
  python3 tools/dev/mutants.py check
}

# Of our own objects: only wcuda_… is visible outside, and nothing ends the process or prints.
lint_symbols() { python3 tools/lint/symbols.py "$@"; }

need_clang_format() { python_tools clang-format clang-format==14.0.6 >/dev/null; }

# All but the public headers: they are a manual, laid out by hand.
clang_format() {
  find cuda examples -regex '.*\.\(c\|h\|cpp\|cu\|cuh\)' ! -path 'cuda/include/worker_cuda*' -print0 |
    xargs -0 -r "$CACHE/python/clang-format/bin/clang-format" "$@"
}
