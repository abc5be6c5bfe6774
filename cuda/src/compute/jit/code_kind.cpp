// Sources: the ELF-64 file header, section and program headers of the System V ABI (machine 190 is
// EM_CUDA); the fatbin header { u32 magic, u16 version, u16 header bytes, u64 content bytes } of
// fatbinary_section.h and CUDA's own output; PTX ISA, "source format": .version comes first, after
// comments.
#include "compute/jit/code_kind.h"

#include <cinttypes>
#include <cstring>
#include <string_view>

#include "core/base/checked.h"

namespace wcuda::jit {
namespace {

constexpr uint64_t kElfHeaderBytes = 64, kSectionHeaderBytes = 64, kProgramHeaderBytes = 56;
constexpr uint32_t kSectionWithoutBytes = 8;  // SHT_NOBITS
constexpr uint16_t kMachineCuda = 190;
constexpr uint32_t kFatbinMagic = 0xba55ed50;
constexpr uint64_t kFatbinHeaderBytes = 16;

struct Bytes {
  const uint8_t* data;
  uint64_t count;
};

// The device code of every machine is little-endian, as is this one's.
template <class T>
T load(const Bytes& bytes, uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data + offset, sizeof(T));
  return value;
}

bool fits(const Bytes& bytes, uint64_t offset, uint64_t count) {
  return offset <= bytes.count && count <= bytes.count - offset;
}

Status cut_short(const char* what, uint64_t offset, uint64_t count, uint64_t bytes) {
  return malformed("device code: %s of %" PRIu64 " bytes at %" PRIu64 ", there are %" PRIu64, what,
                   count, offset, bytes);
}

// A table of headers, each of which may name a range of the file.
Status check_table(const Bytes& bytes, const char* what, uint64_t offset, uint64_t entry_bytes,
                   uint64_t known_bytes, uint64_t count) {
  if (count == 0) return {};
  if (entry_bytes != known_bytes)
    return malformed("device code: %s headers of %" PRIu64 " bytes, not %" PRIu64, what,
                     entry_bytes, known_bytes);
  if (!fits(bytes, offset, count * entry_bytes))
    return cut_short(what, offset, count * entry_bytes, bytes.count);
  return {};
}

Status check_cubin(const Bytes& bytes) {
  if (bytes.count < kElfHeaderBytes)
    return cut_short("an ELF header", 0, kElfHeaderBytes, bytes.count);
  if (bytes.data[4] != 2 || bytes.data[5] != 1)
    return malformed("device code: ELF, but not little-endian of 64 bits");
  const auto machine = load<uint16_t>(bytes, 18);
  if (machine != kMachineCuda)
    return malformed("device code: ELF for machine %u, a cubin has %u", machine, kMachineCuda);
  const auto program_offset = load<uint64_t>(bytes, 32), section_offset = load<uint64_t>(bytes, 40);
  const auto program_count = load<uint16_t>(bytes, 56), section_count = load<uint16_t>(bytes, 60);
  WCUDA_TRY(check_table(bytes, "program", program_offset, load<uint16_t>(bytes, 54),
                        kProgramHeaderBytes, program_count));
  WCUDA_TRY(check_table(bytes, "section", section_offset, load<uint16_t>(bytes, 58),
                        kSectionHeaderBytes, section_count));
  if (section_count == 0) return malformed("device code: ELF without sections");
  for (uint64_t i = 0; i < section_count; ++i) {
    const uint64_t header = section_offset + i * kSectionHeaderBytes;
    const auto offset = load<uint64_t>(bytes, header + 24),
               size = load<uint64_t>(bytes, header + 32);
    if (load<uint32_t>(bytes, header + 4) != kSectionWithoutBytes && !fits(bytes, offset, size))
      return cut_short("a section", offset, size, bytes.count);
  }
  for (uint64_t i = 0; i < program_count; ++i) {
    const uint64_t header = program_offset + i * kProgramHeaderBytes;
    const auto offset = load<uint64_t>(bytes, header + 8),
               size = load<uint64_t>(bytes, header + 32);
    if (!fits(bytes, offset, size)) return cut_short("a segment", offset, size, bytes.count);
  }
  return {};
}

Status check_fatbin(const Bytes& bytes) {
  if (bytes.count < kFatbinHeaderBytes)
    return cut_short("a fatbin header", 0, kFatbinHeaderBytes, bytes.count);
  const auto header_bytes = load<uint16_t>(bytes, 6);
  const auto content_bytes = load<uint64_t>(bytes, 8);
  if (header_bytes < kFatbinHeaderBytes)
    return malformed("device code: a fatbin header of %u bytes", header_bytes);
  if (content_bytes == 0) return malformed("device code: a fatbin without content");
  if (!fits(bytes, header_bytes, content_bytes))
    return cut_short("the fatbin's content", header_bytes, content_bytes, bytes.count);
  return {};
}

// Returns the start of the first token of a text, after spaces and comments.
size_t first_token(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const std::string_view rest = text.substr(at);
    size_t skip = 0;
    if (rest[0] == ' ' || (rest[0] >= '\t' && rest[0] <= '\r')) {
      skip = 1;
    } else if (rest.substr(0, 2) == "//") {
      skip = rest.find('\n');
    } else if (rest.substr(0, 2) == "/*") {
      skip = rest.find("*/", 2);
      if (skip != std::string_view::npos) skip += 2;
    } else {
      return at;
    }
    if (skip == std::string_view::npos) return text.size();
    at += skip;
  }
  return at;
}

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

bool looks_like_source(std::string_view text) {
  for (const char* start : {"#", "extern", "__global__", "template", "namespace", "using", "struct",
                            "static", "typedef", "constexpr", "const", "class", "void"})
    if (starts_with(text, start)) return true;
  return false;
}

}  // namespace

Result<CodeKind> code_kind(const void* code, uint64_t bytes) {
  const Bytes all{static_cast<const uint8_t*>(code), bytes};
  if (bytes >= 4 && std::memcmp(code, "\177ELF", 4) == 0) {
    WCUDA_TRY(check_cubin(all));
    return CodeKind::kCubin;
  }
  if (bytes >= 4 && load<uint32_t>(all, 0) == kFatbinMagic) {
    WCUDA_TRY(check_fatbin(all));
    return CodeKind::kFatbin;
  }
  std::string_view text(static_cast<const char*>(code), bytes);
  while (!text.empty() && text.back() == '\0')
    text.remove_suffix(1);  // the final NUL of a C string
  const std::string_view token = text.substr(first_token(text));
  constexpr std::string_view kVersion = ".version";
  if (starts_with(token, kVersion) && token.size() > kVersion.size() &&
      (token[kVersion.size()] == ' ' || token[kVersion.size()] == '\t')) {
    const size_t nul = text.find('\0');
    if (nul == std::string_view::npos) return CodeKind::kPtx;
    return malformed("device code: PTX with a NUL at byte %zu", nul);
  }
  if (looks_like_source(token))
    return malformed("device code: this is source; compile it first (wcuda_program_create)");
  return malformed("device code: neither PTX nor a cubin nor a fatbin (%" PRIu64 " bytes)", bytes);
}

}  // namespace wcuda::jit
