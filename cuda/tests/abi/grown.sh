#!/usr/bin/env bash
# Builds the library with a field appended to every struct and element that can grow, and runs the programs of
# examples/c, compiled against the frozen headers of version 1, with it: grown.sh FOLDER [CMAKE_ARGUMENT...].
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
folder=$1
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
frozen=$root/cuda/tests/data/abi/1

python3 "$root/tools/abi/grow.py" "$folder/include"
cmake -S "$root/cuda" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O0 \
  -DWCUDA_CUDA=OFF -DWCUDA_BUILD_TESTS=OFF -DWCUDA_PUBLIC_INCLUDE="$folder/include" "${@:2}" >"$folder/configure.log"
cmake --build "$folder/build" --target worker_cuda --parallel "${JOBS:-2}" >"$folder/build.log" ||
  { tail -n 40 "$folder/build.log"; exit 1; }

for example in hello generate backend kernel; do
  ${CC:-cc} -std=c11 -Wall -Wextra -Werror -I"$frozen" -c "$root/examples/c/$example.c" -o "$folder/$example.o"
  ${CXX:-c++} "$folder/$example.o" "$folder/build/libworker_cuda.a" -lpthread -ldl -o "$folder/$example"
done
expect() { # PATTERN PROGRAM ARGUMENT...
  local text
  text=$("${@:2}" 2>&1) || { printf '%s failed:\n%s\n' "$2" "$text"; exit 1; }
  grep -Eq "$1" <<<"$text" || { printf '%s: no "%s" in:\n%s\n' "$2" "$1" "$text"; exit 1; }
}
expect '^[0-9]+ [0-9]+ [0-9]+ [0-9]+$' "$folder/generate" "$root/cuda/tests/data/models/qwen3.gguf" 4 1 2 3
expect 'vector_add: 1024 sums, all 3.0' "$folder/backend"
expect "argument 1 .'x'. has 1000 elements, the kernel needs 1001" "$folder/kernel"
expect 'ledger: +1 allocation' "$folder/hello" host
echo "programs of version 1 run with a library whose structs have grown"
