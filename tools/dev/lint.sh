# ./dev lint: format, layers, ABI note, symbols, words.

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
}

# What needs no build.
lint_checks() {
  python3 tools/lint/layers.py
  python3 tools/lint/abi_note.py
  python3 tools/lint/words.py
}

# Of our own objects: only wcuda_… is visible outside, and nothing ends the process or prints.
lint_symbols() { python3 tools/lint/symbols.py "$@"; }

need_clang_format() { python_tools clang-format clang-format==14.0.6 >/dev/null; }

# All but the public headers: they are a manual, laid out by hand.
clang_format() {
  find cuda examples -regex '.*\.\(c\|h\|cpp\|cu\|cuh\)' ! -path 'cuda/include/worker_cuda*' -print0 |
    xargs -0 -r "$CACHE/python/clang-format/bin/clang-format" "$@"
}
