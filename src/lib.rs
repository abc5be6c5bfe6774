//! GGUF language models resident in the memory of a GPU, or of the host: the safe Rust side of
//! `libworker_cuda.a`.
