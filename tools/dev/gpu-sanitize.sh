#!/usr/bin/env bash
# ./sanitize.sh: the reduced suite of the GPU tests under the four tools of compute-sanitizer, all at once; logs in
# sanitizer/. Each kernel family runs at least once; the large shapes are left out, for a tool slows them 100 times.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
[ -e tree ] || tar -xJf pack.tar.xz 2>/dev/null || python3 -m tarfile -e pack.tar.xz .
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || { echo "sanitize.sh: compute-sanitizer is not here" >&2; exit 77; }
export WCUDA_REQUIRE_GPU=1
place=$(cat tree/place.txt 2>/dev/null)
[ -z "$place" ] || [ -e "$place" ] || { mkdir -p "$(dirname "$place")" && ln -s "$PWD/tree" "$place"; }
kernels=GpuStep.*:GpuEmbed.*:GpuSoftcap*:GpuRopeKv.rows*:GpuRepack.takes*:GpuAttentionGolden.*
kernels+=:GpuAttentionDecode.teams_of_warps_store*:GpuAttentionOperand.of_rows_that_share*:GpuAttentionHost.*:GpuAttention.softcap*:Path/GpuLinear.odd*/linear_batch:Path/GpuLinear.odd*/packed_gemm
suite=$kernels:GpuAttentionOperand.of_prompts*:GpuPackedGemm.a_gate_of_zeros*:GpuNumeric.*:GpuBuffer.fill*:GpuRepack.*:GpuUnpack.*:Path/GpuLinear.gates*
suite+=:Path/GpuLinear.every_format*/linear_batch:Path/GpuLinear.every_format*/packed_gemm:GpuLinearVector.products*:Gpu/ModelUpload.expands*
suite+=:Gpu/ModelUpload.tensors_take_turns*:Gpu/Step.*:Gpu/EngineGolden.every_family*:Gpu/DraftHeads.*
suite+=:GpuCatalogue.equals_numpy:GpuCatalogue.element_wise*:GpuCatalogue.unknown*:GpuKernels.*:GpuStreams.*
suite+=:Shapes/GpuFusedLayers.as_layer_by_layer/dim1024_attention2048*:Shapes/GpuFusedLayers.as_layer_by_layer/dim1024_attention1024*
suite+=:GpuModules.are*:GpuRegistry.*:GpuZctlSession.*:GpuGemmApi.large*
suite+=:-Gpu/Step.poisoned*:Gpu/Step.a_second_thread*:Gpu/Step.a_seed*
# Backends whole, as the library has them and as a table: their kernels are one line each, so that one tool will do.
# And products by way of copies: initcheck does not see what cuBLASLt stores.
tables=Gpu/TableConformance.*/cuda:Gpu/TableKernels.*/cuda:Gpu/BackendConformance.*/cuda
tables+=:GpuGemmApi.odd*:GpuGemmApi.fp8*
# The device's free memory is asked while the other tools take of it.
crowded=Gpu/TableConformance.memory_info_follows*
# racecheck is ten times slower still: whole steps only once, with sampling.
races=$kernels:GpuCatalogue.equals_numpy:GpuKernels.vector_add*:Gpu/Step.top_logprobs*
races+=:Gpu/DraftHeads.logits_are*:Gpu/DraftHeads.drafts_continue*
races+=:Shapes/GpuFusedLayers.as_layer_by_layer/dim1024_attention1024*
# A test that was renamed is not left out without a word.
for pattern in $(tr : ' ' <<<"${suite%%:-*}:$tables:$crowded:$races"); do
  ./wcuda_tests --gtest_list_tests --gtest_filter="$pattern" | grep -q '^  ' ||
    { echo "sanitize.sh: no test is named $pattern" >&2; exit 1; }
done
mkdir -p sanitizer
status=0 tools=(memcheck racecheck initcheck synccheck) jobs=()
for tool in "${tools[@]}"; do
  filter=${1:-$suite}
  [ $tool != memcheck ] || filter=${1:-$tables:$suite:$crowded}
  [ $tool != racecheck ] || filter=${1:-$races}
  options=()
  # Calls that the driver is meant to refuse: how many parameters a kernel has, bad code.
  [ $tool != memcheck ] || options=(--report-api-errors no)
  # A struct that a kernel writes, read back with its padding.
  [ $tool != initcheck ] || filter=${1:-$suite:GpuKernels.every_kind*}
  timeout "${SANITIZE_SECONDS:-300}" "$sanitizer" --tool $tool "${options[@]}" --error-exitcode 3 ./wcuda_tests \
    --gtest_filter="$filter" >sanitizer/$tool.log 2>&1 &
  jobs+=($!)
done
for i in "${!tools[@]}"; do
  code=0
  wait "${jobs[$i]}" || code=$?
  [ $code = 0 ] || status=1
  echo "${tools[$i]}: exit $code, $(grep -cE '^\[ +OK' sanitizer/"${tools[$i]}".log) tests passed," \
    "$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' sanitizer/"${tools[$i]}".log | tail -1)"
done
exit $status
