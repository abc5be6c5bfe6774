#!/usr/bin/env bash
# Old callers of a newer library: builds the library with a field appended to every struct and element that can grow,
# compiles the programs of examples/c and the test suites that use the public interface alone against the frozen
# headers of version 1, and runs both with that library: grown.sh FOLDER [CMAKE_ARGUMENT...].
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
folder=$1
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
model=$root/cuda/tests/data/models/qwen3.gguf

python3 "$root/tools/abi/grow.py" "$folder/include"
# The layout table is that of the headers in cuda/include: it leaves the new field of its elements out.
cmake -S "$root/cuda" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=None \
  -DCMAKE_CXX_FLAGS="-O0 -Wno-missing-field-initializers" -DWCUDA_CUDA=OFF -DWCUDA_BUILD_TESTS=ON \
  -DWCUDA_PUBLIC_INCLUDE="$folder/include" "${@:2}"
cmake --build "$folder/build" --parallel "${JOBS:-2}" --target wcuda_v1_tests wcuda_v1_hello wcuda_v1_generate \
  wcuda_v1_backend wcuda_v1_kernel
expect() { # PATTERN PROGRAM ARGUMENT...
  local text
  text=$("$folder/build/tests/${@:2:1}" "${@:3}" 2>&1) || { printf '%s failed:\n%s\n' "$2" "$text"; exit 1; }
  grep -Eq "$1" <<<"$text" || { printf '%s: no "%s" in:\n%s\n' "$2" "$1" "$text"; exit 1; }
}
expect '^[0-9]+ [0-9]+ [0-9]+ [0-9]+$' wcuda_v1_generate "$model" 4 1 2 3
expect 'vector_add: 1024 sums, all 3.0' wcuda_v1_backend
expect "argument 1 .'x'. has 1000 elements, the kernel needs 1001" wcuda_v1_kernel
expect 'ledger: +1 allocation' wcuda_v1_hello host

# The library's templates over its structs stay apart from the tests', which have other sizes: all but its own names
# become local.
ld -r --force-group-allocation --whole-archive "$folder/build/libworker_cuda.a" -o "$folder/library.o"
objcopy --wildcard --keep-global-symbol='wcuda_*' --keep-global-symbol='_ZN*5wcuda*' "$folder/library.o"
mapfile -t objects < <(find "$folder/build/tests/CMakeFiles/wcuda_v1_tests.dir" -name '*.o')
"${CXX:-c++}" "${objects[@]}" "$folder/library.o" -Wl,-z,muldefs -lgtest -lgtest_main -lpthread -ldl \
  -o "$folder/v1_tests"
# Two suites compare sizes with those of the library.
"$folder/v1_tests" --gtest_brief=1 \
  --gtest_filter='-Gpu*:*/Gpu*:Context.options_of_a_newer*:*TableConformance.table_is_complete_and_states_its_size*'
