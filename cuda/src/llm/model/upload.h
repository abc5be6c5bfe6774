// upload: streams the tensors of a file to a device that has its own memory.
//
// Threads read pieces of the file into pinned slices, two per thread. Two streams copy them into a
// staging buffer on the device, which holds complete tensors in the format of the file. Further
// streams take the tensors in turn: each computes the digest of a tensor, repacks it, and computes
// the digest of the result. The plan determines which tensors must have left the staging buffer
// before the next one enters.
#pragma once

#include <functional>
#include <vector>

#include "llm/gguf/gguf.h"
#include "llm/model/plan.h"

namespace wcuda::model {

struct UploadArgs {
  Backend* backend;
  const gguf::Gguf* file;
  const DetailedPlan* plan;              // is_streamed
  uint8_t* slices;                       // plan->plan.staging_bytes of pinned memory
  uint8_t* staged;                       // plan->plan.loading_bytes of device memory
  const std::vector<uint8_t*>* targets;  // the address of each planned tensor
  // Called before each piece with the bytes done so far, on any thread and concurrently. A failure
  // stops the upload.
  std::function<Status(uint64_t)> check_cancelled;
  // Called with the bytes done, on the calling thread.
  std::function<Status(uint64_t)> report;
};

// What was computed of each planned tensor on the way.
struct Uploaded {
  std::vector<TensorDigests> digests;
  std::vector<float> scale_bounds;  // of matrices of types that have a scale factor
};

// Returns when all work is done or, after a failure, when none is left.
Result<Uploaded> upload(const UploadArgs& args);

}  // namespace wcuda::model
