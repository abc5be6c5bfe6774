/* echo.c: a guest of ZCTL/1 that writes what it reads.
 *
 *   cc -std=c11 -DWCUDA_CLOAK_MAIN echo.c $(pkg-config --cflags --libs worker_cuda) -o echo
 *   echo hello | ./echo
 */
#include "worker_cuda_cloak.h"

enum { kTrapHostFailed = 4 };

static uint8_t memory[4096];

uint32_t zprog_heap_base_value(void) { return 0; }

int lembeh_handle(int32_t req_handle, int32_t res_handle, lembeh_in in, lembeh_out out,
                  lembeh_end end, lembeh_log log, lembeh_ctl ctl, void* ctx,
                  const struct zprog_sys* sys) {
  int32_t bytes;
  (void)log, (void)ctl, (void)sys;
  while ((bytes = in(ctx, req_handle, memory, sizeof(memory), 0, (int32_t)sizeof(memory))) > 0)
    if (out(ctx, res_handle, memory, sizeof(memory), 0, bytes) != bytes) return kTrapHostFailed;
  end(ctx, res_handle);
  return bytes < 0 ? kTrapHostFailed : 0;
}
