// The same in C++17.
#define COMPAT_USE compat_use_cpp
#include "api/base/compat_use.c"
