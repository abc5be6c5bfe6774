/* Nothing of its own: the shared object holds libworker_cuda_compat.a. */
int wcuda_compat_symbols_anchor;
