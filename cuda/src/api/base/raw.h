// The devices behind raw addresses; tests can replace them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "core/vram/memory.h"

namespace wcuda::api {

// Opens a device of CUDA or HOST.
using RawOpener =
    std::function<Result<std::shared_ptr<vram::Memory>>(int32_t backend, int32_t ordinal)>;

// Sets the opener of devices opened from now on; null: the real one.
void set_raw_opener(RawOpener opener);

}  // namespace wcuda::api
