/* guest_host.c: runs a guest that is a shared object: guest_host GUEST.so [OPTIONS of
 * wcuda_cloak_main]. */
#include <dlfcn.h>

#include "worker_cuda_cloak.h"

int main(int argc, char** argv) {
  lembeh_entry entry = NULL;
  uint32_t (*heap_base)(void) = NULL;
  void* const guest = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (guest) {
    *(void**)&entry = dlsym(guest, "lembeh_handle");
    *(void**)&heap_base = dlsym(guest, "zprog_heap_base_value");
  }
  if (!entry || !heap_base) {
    fprintf(stderr, "error: %s\n", argc > 1 ? dlerror() : "no guest given");
    return 1;
  }
  return wcuda_cloak_main(argc - 1, argv + 1, entry, heap_base());
}
