// upload: streaming the tensors of a file to a device that has memory of its own.
//
// Threads read pieces of the file into pinned slices, two a thread; two streams copy them into a
// slab of device memory, where a tensor is whole, as in the file; further streams, a tensor each in
// turn, take its digest, put it in its place in the device's order, and take the digest of that.
// The plan says which tensors must have left the slab before the next one may come.
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
  uint8_t* slab;                         // plan->plan.loading_bytes of device memory
  const std::vector<uint8_t*>* targets;  // where each planned tensor belongs
  // Asked before each piece with the bytes done so far, on any thread, on several at once; what is
  // not ok stops the upload.
  std::function<Status(uint64_t)> check_cancelled;
  // Told the bytes done, on the calling thread.
  std::function<Status(uint64_t)> report;
};

// Returns when all is done, or nothing runs any more. `digests`: of each planned tensor.
Status upload(const UploadArgs& args, std::vector<TensorDigests>* digests);

}  // namespace wcuda::model
