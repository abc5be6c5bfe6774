// Section 2 of the header: the layout of every public struct, for tests of bindings. The table is
// written from the headers.
#include <cstddef>

#include "api/base/elements.h"
#include "worker_cuda.h"

namespace {

constexpr wcuda_abi_field kLayout[] = {
#define WCUDA_STRUCT(type) {0, 0, sizeof(type), alignof(type), #type, ""},
#define WCUDA_FIELD(type, field) \
  {0, offsetof(type, field), sizeof(type::field), alignof(decltype(type::field)), #type, #field},
#include "api/base/abi_layout.inc"
#undef WCUDA_STRUCT
#undef WCUDA_FIELD
};

}  // namespace

using namespace wcuda;
using namespace wcuda::api;

wcuda_status wcuda_abi_field_list(uint64_t first, wcuda_abi_field* fields, uint64_t capacity,
                                  uint64_t* count, wcuda_error* error) {
  return guarded(error, [&]() -> Status {
    return write_list<wcuda_abi_field>({fields, capacity, "fields"}, first, std::size(kLayout),
                                       count, [](uint64_t index) { return kLayout[index]; });
  });
}
