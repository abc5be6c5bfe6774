// One report on a context's device: fault, memory, leaks, temperature.
#pragma once

#include "core/vram/memory.h"

namespace wcuda::health {

// Never fails: what cannot be asked is "not known", and the message says why.
wcuda_health report(vram::Memory& memory);

}  // namespace wcuda::health
