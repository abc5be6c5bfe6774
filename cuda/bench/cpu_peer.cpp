// The other engine of ./dev bench --cpu-peer: llama.cpp's library with one of its CPU backends.
//
//   cpu_peer BACKEND serve FILE THREADS    as e2e_bench --serve
//   cpu_peer BACKEND quantize FROM TO TYPE: TYPE is a number of llama_ftype
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

namespace {

int quantize(char** arguments) {
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.ftype = static_cast<llama_ftype>(std::atoi(arguments[2]));
  params.allow_requantize = true;
  return static_cast<int>(llama_model_quantize(arguments[0], arguments[1], &params));
}

int serve(char** arguments) {
  constexpr int kContext = 2048, kBatch = 512;
  llama_model* model = llama_model_load_from_file(arguments[0], llama_model_default_params());
  if (model == nullptr) return 1;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = kContext;
  params.n_batch = params.n_ubatch = kBatch;
  params.n_threads = params.n_threads_batch = std::atoi(arguments[1]);
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) return 1;
  const int vocabulary_size = llama_vocab_n_tokens(llama_model_get_vocab(model));
  const auto next_token = [&] { return static_cast<llama_token>(std::rand() % vocabulary_size); };
  std::printf("ready\n");
  std::fflush(stdout);
  char work[16];
  int count = 0, length = 0;
  llama_memory_t memory = llama_get_memory(context);
  while (std::scanf("%15s %d", work, &count) == 2) {
    const bool is_prefill = std::strcmp(work, "prefill") == 0;
    if (is_prefill)
      llama_memory_clear(memory, true);
    else
      llama_memory_seq_rm(memory, 0, length, -1);
    std::vector<llama_token> tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(next_token());
    const auto begin = std::chrono::steady_clock::now();
    const int step = is_prefill ? kBatch : 1;
    for (int i = 0; i < count; i += step) {
      const int tokens_left = count - i;
      const int size = tokens_left < step ? tokens_left : step;
      if (llama_decode(context, llama_batch_get_one(&tokens[i], size)) != 0) return 1;
      llama_synchronize(context);
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("%.6f\n", seconds.count());
    std::fflush(stdout);
    if (is_prefill) length = count;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5 || ggml_backend_load(argv[1]) == nullptr) return 2;
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level >= GGML_LOG_LEVEL_ERROR && level != GGML_LOG_LEVEL_CONT) std::fputs(text, stderr);
      },
      nullptr);
  llama_backend_init();
  if (argc == 6 && std::strcmp(argv[2], "quantize") == 0) return quantize(argv + 3);
  if (argc == 5 && std::strcmp(argv[2], "serve") == 0) return serve(argv + 3);
  return 2;
}
