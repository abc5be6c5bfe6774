// The plan of a load: which tensor goes where, in which layout, and how many bytes that takes.
#pragma once

#include <vector>

#include "llm/model/config.h"
#include "llm/model/model.h"
#include "llm/model/tensor_list.h"

namespace wcuda::model {

// A tensor of the file that the model uses.
struct PlannedTensor {
  TensorSlot slot;
  uint64_t index = 0;  // into the file's tensors
  uint32_t type = 0;
  uint64_t file_row_bytes = 0;  // of one row of a matrix, of one element of a vector
  uint64_t file_bytes = 0;
  Layout layout = Layout::kRows;
  uint64_t bytes = 0;   // on the device; of a vector: f32
  uint64_t offset = 0;  // of a vector, in the block of all vectors
  // Of a streamed load: where the tensor lies in the slab, and how many of the plan's first tensors
  // must have left it before.
  uint64_t slab_offset = 0;
  size_t waits_for = 0;
};

// A thread that reads fills one slice while the other is being copied.
constexpr uint32_t kSlicesPerReader = 2;
// Tensors that are placed at the same time: a small one takes 0.1 ms, whatever its size.
constexpr uint32_t kPlacingStreams = 4;

struct DetailedPlan {
  LoadPlan plan;
  // The device has memory of its own: see upload.h. Tensors are in the order of the file then.
  bool is_streamed = false;
  std::vector<PlannedTensor> tensors;
  uint64_t rope_offset = 0;    // f32 (rope_dimension_count / 2), in the block of all vectors
  uint64_t vectors_bytes = 0;  // one allocation for all vectors; each matrix has its own
  uint64_t file_bytes = 0;     // to be read
  // Staging: `slice_count` slices, one a reading thread; of a streamed load kSlicesPerReader.
  uint32_t slice_count = 0;
  uint64_t slice_bytes = 0;
  // Of a streamed load, in plan.loading_bytes: the slab, a TensorDigests for each tensor, and what
  // digests work in.
  uint64_t slab_bytes = 0;
  uint64_t digests_offset = 0;
  uint64_t digest_scratch_offset = 0;
};

// Staging of a vector: its elements as in the file, then from here on as f32.
uint64_t staged_vector_offset(uint64_t element_count, uint64_t file_element_bytes);
// Rows (of a vector: elements) of a tensor that go through one slice at a time; at least 1.
uint64_t rows_per_piece(const PlannedTensor& tensor, uint64_t slice_bytes);

// Gives each tensor its place in the slab: one after the other, from the start again when the end
// is reached.
void fill_slab(DetailedPlan* plan);

Result<DetailedPlan> plan_load_in_detail(const Backend& backend, const gguf::Gguf& file);

}  // namespace wcuda::model
