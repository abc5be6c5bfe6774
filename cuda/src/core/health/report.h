// One report on a context's device: fault, memory, leaks, temperature.
#pragma once

#include "core/vram/memory.h"

namespace wcuda::health {

// Never fails: a value that cannot be read is "not known", and the message gives the reason.
wcuda_health report(vram::Memory& memory);

}  // namespace wcuda::health
