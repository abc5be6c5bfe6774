/* vector_add.c: a guest of ZCTL/1. Reads two vectors of f32, one behind the other, from stdin,
 * finds the kernel vector_add by its name, and writes the sums to stdout.
 *
 *   cc -std=c11 -DWCUDA_CLOAK_MAIN vector_add.c $(pkg-config --cflags --libs worker_cuda)
 */
#include "worker_cuda_cloak.h"

enum { kTrapBounds = 1, kTrapHostFailed = 4, kTrapAlloc = 5 };
enum { kHeader = 32, kInputMax = 1 << 18, kFrame = 256, kResponse = 1 << 14 };
enum { kKernelList = 0x0101, kKernelRun = 0x0102, kArgI32 = 1, kArgBytes = 10 };

static uint8_t memory[1 << 20];

/* What lembeh_handle was given. */
typedef struct {
  lembeh_log log;
  lembeh_ctl ctl;
  void* ctx;
  int32_t frame, response; /* offsets in the memory */
} Host;

uint32_t zprog_heap_base_value(void) { return 0; }

static void put_u32(int32_t offset, uint32_t value) {
  int i;
  for (i = 0; i < 4; ++i) memory[offset + i] = (uint8_t)(value >> (8 * i));
}

static uint32_t u32_at(int32_t offset) {
  return memory[offset] | (uint32_t)memory[offset + 1] << 8 | (uint32_t)memory[offset + 2] << 16 |
         (uint32_t)memory[offset + 3] << 24;
}

static uint32_t crc32_of(int32_t offset, int32_t bytes) {
  uint32_t crc = 0xffffffff;
  int32_t i, bit;
  for (i = 0; i < bytes; ++i) {
    crc ^= memory[offset + i];
    for (bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xedb88320 : 0);
  }
  return ~crc;
}

static void log_text(const Host* host, int32_t msg, int32_t bytes) {
  static const char topic[] = "vector_add";
  memcpy(memory + host->frame, topic, sizeof(topic) - 1);
  host->log(host->ctx, memory, sizeof(memory), host->frame, sizeof(topic) - 1, msg, bytes);
}

/* Sends the payload that lies behind the frame's header. The checksum makes the answer have one
 * too. Returns the bytes of a response with status 0, else 0. */
static int32_t call(const Host* host, uint32_t op, uint32_t payload_bytes) {
  const int32_t frame = host->frame, bytes = kHeader + (int32_t)payload_bytes;
  int32_t ret;
  memset(memory + frame, 0, kHeader);
  memcpy(memory + frame, "ZCTL\1", 5);
  put_u32(frame + 6, op); /* two bytes; the next field is 0 */
  put_u32(frame + 12, op);
  put_u32(frame + 16, payload_bytes);
  put_u32(frame + 24, crc32_of(frame, bytes));
  ret = wcuda_cloak_call(host->ctl, host->ctx, memory, sizeof(memory), frame, bytes, host->response,
                         kResponse, 0);
  return ret >= kHeader && u32_at(host->response + 16) == 0 ? ret : 0;
}

/* The id of a kernel; 0 if there is none of this name. */
static uint32_t find_kernel(const Host* host, const char* name) {
  const uint32_t length = (uint32_t)strlen(name);
  const int32_t bytes = call(host, kKernelList, 0);
  int32_t entry = host->response + kHeader + 4;
  uint32_t i;
  if (bytes == 0) return 0;
  for (i = u32_at(host->response + kHeader); i > 0; --i) {
    const uint32_t name_bytes = u32_at(entry + 4);
    if (name_bytes == length && memcmp(memory + entry + 8, name, length) == 0) return u32_at(entry);
    entry += 8 + (int32_t)name_bytes + 12;
  }
  return 0;
}

/* c = a + b; each has n elements, and they lie one behind the other. */
static int add(const Host* host, int32_t a, int32_t n) {
  const uint32_t id = find_kernel(host, "vector_add");
  const int32_t payload = host->frame + kHeader;
  int32_t i;
  if (id == 0) return kTrapHostFailed;
  memset(memory + payload, 0, 16 + 4 * 16);
  put_u32(payload, id);
  put_u32(payload + 4, 4);
  for (i = 0; i < 3; ++i) {
    const int32_t arg = payload + 16 + 16 * i;
    put_u32(arg, kArgBytes);
    put_u32(arg + 4, (uint32_t)(a + 4 * n * i));
    put_u32(arg + 8, 4 * (uint32_t)n);
  }
  put_u32(payload + 16 + 48, kArgI32);
  put_u32(payload + 16 + 52, (uint32_t)n);
  if (call(host, kKernelRun, 16 + 4 * 16) == 0) return kTrapHostFailed;
  if (u32_at(host->response + kHeader) == 1) return 0;
  log_text(host, host->response + kHeader + 12, (int32_t)u32_at(host->response + kHeader + 8));
  return kTrapHostFailed;
}

int lembeh_handle(int32_t req_handle, int32_t res_handle, lembeh_in in, lembeh_out out,
                  lembeh_end end, lembeh_log log, lembeh_ctl ctl, void* ctx,
                  const struct zprog_sys* sys) {
  Host host = {log, ctl, ctx, 0, 0};
  const int32_t input = sys->alloc_fn(sys->ctx, memory, sizeof(memory), kInputMax / 2 * 3);
  int32_t bytes = 0, got, n, trap;
  host.frame = sys->alloc_fn(sys->ctx, memory, sizeof(memory), kFrame);
  host.response = sys->alloc_fn(sys->ctx, memory, sizeof(memory), kResponse);
  if (input < 0 || host.frame < 0 || host.response < 0) return kTrapAlloc;
  while ((got = in(ctx, req_handle, memory, sizeof(memory), input + bytes, kInputMax - bytes)) > 0)
    bytes += got;
  if (got < 0) return kTrapHostFailed;
  if (bytes == kInputMax || bytes % 8 != 0) return kTrapBounds; /* too many, or no two vectors */

  n = bytes / 8;
  trap = add(&host, input, n);
  if (trap != 0) return trap;
  if (out(ctx, res_handle, memory, sizeof(memory), input + bytes, bytes / 2) != bytes / 2)
    return kTrapHostFailed;
  end(ctx, res_handle);
  return 0;
}
