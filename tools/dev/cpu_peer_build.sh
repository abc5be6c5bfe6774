#!/usr/bin/env bash
# cpu_peer_build.sh SOURCE FOLDER: builds what ./dev bench --cpu-peer runs of llama.cpp: its library once, its CPU
# backend for AVX2, AVX-VNNI and AVX-512 with VNNI, and cpu_peer, which loads one of them. SOURCE is llama.cpp's tree.
# Needs no Cargo and no network; JOBS compile at once.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(realpath "$1") folder=$2 jobs=${JOBS:-$(nproc)}
mkdir -p "$folder"
for isa in avx2 avxvnni avx512; do
  wide=OFF vnni=OFF target=ggml-cpu
  case $isa in avx2) target=llama ;; avxvnni) vnni=ON ;; avx512) wide=ON ;; esac
  cmake -S "$source" -B "$folder/$isa" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON -DCMAKE_BUILD_RPATH_USE_ORIGIN=ON \
    -DGGML_{SSE42,AVX,AVX2,FMA,F16C,BMI2}=ON -DGGML_AVX_VNNI=$vnni -DGGML_AVX512=$wide -DGGML_AVX512_VNNI=$wide \
    -DLLAMA_BUILD_{COMMON,TESTS,TOOLS,EXAMPLES,SERVER,APP}=OFF
  cmake --build "$folder/$isa" --parallel "$jobs" --target $target
  cp "$folder/$isa/bin/libggml-cpu.so" "$folder/libggml-cpu-$isa.so"
done
g++ -O2 -std=c++17 -I"$source/include" -I"$source/ggml/include" "$here/../../cuda/bench/cpu_peer.cpp" -o "$folder/cpu_peer" \
  -L"$folder/avx2/bin" -lllama -lggml -lggml-base -Wl,-rpath,"\$ORIGIN/avx2/bin"
