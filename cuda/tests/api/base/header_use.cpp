// The same in C++17.
#define HEADER_USE header_use_cpp
#include "api/base/header_use.c"
