// The plan of a load: the address, the layout and the bytes of each tensor.
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
  // In a streamed load: the tensor's offset in the device staging buffer, and how many of the
  // plan's first tensors must have left the buffer before.
  uint64_t staged_offset = 0;
  size_t waits_for = 0;
};

// A reader thread fills one slice while the other is copied.
constexpr uint32_t kSlicesPerReader = 2;
// Tensors that are repacked concurrently: a small one takes 0.1 ms, whatever its size.
constexpr uint32_t kRepackStreams = 4;

struct DetailedPlan {
  LoadPlan plan;
  // True if the device has its own memory (upload.h). Tensors are then in the order of the file.
  bool is_streamed = false;
  std::vector<PlannedTensor> tensors;
  uint64_t rope_offset = 0;          // f32 (rope_dimension_count / 2), in the block of all vectors
  uint64_t draft_tokens_offset = 0;  // int32 (draft_head.vocabulary_size), likewise, if there are
  uint64_t vectors_bytes = 0;        // one allocation for all vectors; each matrix has its own
  uint64_t file_bytes = 0;           // to be read
  // Pinned staging: `slice_count` slices, one per reader thread; kSlicesPerReader if streamed.
  uint32_t slice_count = 0;
  uint64_t slice_bytes = 0;
  // In a streamed load, parts of plan.loading_bytes: the device staging buffer, a TensorDigests for
  // each tensor, a scale bound for each tensor, and scratch for digests.
  uint64_t device_staging_bytes = 0;
  uint64_t digests_offset = 0;
  uint64_t scale_bounds_offset = 0;
  uint64_t digest_scratch_offset = 0;
};

// Returns the offset of a vector's f32 elements in its staging, after the elements as in the file.
uint64_t staged_vector_offset(uint64_t element_count, uint64_t file_element_bytes);
// Returns how many rows (of a vector: elements) of a tensor go through one slice at a time.
uint64_t rows_per_piece(const PlannedTensor& tensor, uint64_t slice_bytes);

// Assigns each tensor its offset in the device staging buffer: one after the other, and from the
// start again when the end is reached.
void assign_staged_offsets(DetailedPlan* plan);

// Gives a draft head the matrices that its file does not have: those of its target, or without one
// matrices of which only the shape is known.
void take_target_weights(const Config& head, const Weights* target, Weights* weights);

Result<DetailedPlan> plan_load_in_detail(const Backend& backend, const gguf::Gguf& file,
                                         const Model* target = nullptr);

}  // namespace wcuda::model
