// Computes and stores the digests of a model's tensors, and compares them with the device memory.
#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "core/base/blake3.h"
#include "core/vram/digest.h"
#include "kernels/shared/numeric.h"
#include "llm/model/model.h"
#include "llm/quant/format.h"
#include "llm/quant/layout_host.h"

namespace wcuda::model {
namespace {

constexpr uint32_t kRowsAtOnce = 16;

// Restores a vector's elements as they were in the file, exactly, from the f32 values.
void file_elements(const ResidentTensor& tensor, std::vector<uint8_t>* bytes) {
  const auto* const values = static_cast<const float*>(tensor.matrix.data);
  bytes->resize(tensor.matrix.rows * sizeof(uint16_t));
  for (uint32_t i = 0; i < tensor.matrix.rows; ++i) {
    const uint16_t code = tensor.matrix.type == TensorType::kF16 ? float_to_half(values[i])
                                                                 : float_to_bf16(values[i]);
    std::memcpy(bytes->data() + i * sizeof code, &code, sizeof code);
  }
}

// Returns the digest of the file's bytes, restored from the resident ones, on the host.
Result<Digest> file_digest(const ResidentTensor& tensor) {
  const Weight& matrix = tensor.matrix;
  const auto* const data = static_cast<const uint8_t*>(matrix.data);
  Digest digest;
  blake3::Hasher hasher;
  std::vector<uint8_t> rows;
  if (tensor.is_vector && matrix.type != TensorType::kF32) {
    file_elements(tensor, &rows);
    hasher.update(rows.data(), rows.size());
  } else if (matrix.layout == Layout::kRows) {
    hasher.update(data, matrix.bytes);
  } else {
    WCUDA_ASSIGN(const uint64_t row_bytes,
                 quant::row_bytes(*quant::find_format(matrix.type), matrix.cols));
    rows.resize(kRowsAtOnce * row_bytes);
    for (uint32_t first = 0; first < matrix.rows; first += kRowsAtOnce) {
      const uint32_t count = std::min(kRowsAtOnce, matrix.rows - first);
      WCUDA_TRY(quant::unpack_host(matrix.type, matrix.layout, matrix.rows, matrix.cols, first,
                                   count, data, rows.data()));
      hasher.update(rows.data(), count * row_bytes);
    }
  }
  hasher.finish(digest.data());
  return digest;
}

}  // namespace

Status Model::take_digests() {
  for (ResidentTensor& tensor : tensors_) {
    WCUDA_ASSIGN(tensor.digests.file, file_digest(tensor));
    WCUDA_TRY(vram::digest(memory_->backend(), tensor.matrix.data, tensor.matrix.bytes,
                           tensor.digests.resident.data()));
  }
  return {};
}

Result<TensorDigests> Model::digests(uint64_t index) const {
  for (const ResidentTensor& tensor : tensors_)
    if (tensor.index == index) return TensorDigests(tensor.digests);
  return Status::error(WCUDA_NOT_FOUND, "tensor %" PRIu64 " of the file is not among the weights",
                       index);
}

Status Model::verify() const {
  for (const ResidentTensor& tensor : tensors_) {
    Digest now;
    WCUDA_TRY(
        vram::digest(memory_->backend(), tensor.matrix.data, tensor.matrix.bytes, now.data()));
    if (now != tensor.digests.resident)
      return Status::error(WCUDA_INTEGRITY,
                           "tensor '%s': its %" PRIu64
                           " bytes on the device are not those that were loaded",
                           tensor.name.c_str(), tensor.matrix.bytes);
  }
  return {};
}

}  // namespace wcuda::model
