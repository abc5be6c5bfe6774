// Which drafts of a row are accepted: one rule for the engine, the host's runner and the device.
#pragma once

#include <cstdint>

#include "kernels/shared/host_device.h"
#include "kernels/shared/step_inputs.h"

namespace wcuda::kernels {

// Returns how many of the first `count` drafts of a row are accepted. drafts[i] is the token of
// draft i, drawn[i] the token that was drawn for its position, by the row or the draft before it,
// and statuses[i] the status of draft i. A draft is accepted if those before it are, if its token
// was drawn, and if a token could be drawn after it.
WCUDA_HOST_DEVICE inline uint32_t accepted_drafts(uint32_t count, const int32_t* drafts,
                                                  const int32_t* drawn, const int32_t* statuses) {
  uint32_t accepted = 0;
  while (accepted < count && drawn[accepted] == drafts[accepted] && statuses[accepted] == kRowOk)
    ++accepted;
  return accepted;
}

}  // namespace wcuda::kernels
