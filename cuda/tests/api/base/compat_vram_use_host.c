#define WCUDA_COMPAT_HOST
#define COMPAT_VRAM_USE compat_vram_use_host
#include "compat_vram_use.c"
