// The devices behind raw addresses; tests put others in their place.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "core/vram/memory.h"

namespace wcuda::api {

// Opens what stands behind a device of CUDA or HOST.
using RawOpener =
    std::function<Result<std::shared_ptr<vram::Memory>>(int32_t backend, int32_t ordinal)>;

// For devices opened from now on; null: the real ones.
void set_raw_opener(RawOpener opener);

}  // namespace wcuda::api
