// The same in C++17.
#include "api/compat_use.c"
