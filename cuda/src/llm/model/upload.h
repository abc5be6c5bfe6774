// upload: streaming the tensors of a file to a device that has memory of its own.
//
// Threads read pieces of the file into pinned slices, two per thread; two streams copy them into a
// staging buffer on the device, where a tensor is whole, as in the file. Further streams, one
// tensor each in turn, compute its digest, repack it for the device, and compute the digest of the
// result. The plan names the tensors that must have left the staging buffer before the next one
// enters.
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
  const std::vector<uint8_t*>* targets;  // where each planned tensor belongs
  // Called before each piece with the bytes done so far, on any thread and concurrently; a failure
  // stops the upload.
  std::function<Status(uint64_t)> check_cancelled;
  // Called with the bytes done, on the calling thread.
  std::function<Status(uint64_t)> report;
};

// Returns when everything is done, or after a failure when no work is left. `digests`: of each
// planned tensor.
Status upload(const UploadArgs& args, std::vector<TensorDigests>* digests);

}  // namespace wcuda::model
