/* Generates tokens greedily: generate MODEL.gguf COUNT TOKEN… prints the ids of what comes next.
 *
 * Text does not cross the C interface: `worker-orcd tokenize` and `detokenize` turn it into ids and
 * back. Every call is checked; handles are destroyed in any order.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <worker_cuda.h>

/* One step of one row: appends the tokens, samples the next. */
static wcuda_status next_token(wcuda_engine engine, wcuda_sequence sequence, const int32_t* tokens,
                               uint32_t token_count, int32_t* sampled, wcuda_error* error) {
  wcuda_row row = WCUDA_ROW_INIT;
  row.sequence = sequence;
  row.tokens = tokens;
  row.token_count = token_count;
  row.flags = WCUDA_ROW_SAMPLE;

  wcuda_step step = WCUDA_STEP_INIT;
  step.row_count = 1;
  step.rows = &row;
  uint64_t ticket = 0;
  wcuda_status status = wcuda_step_submit(engine, &step, &ticket, error);
  if (status != WCUDA_OK) return status;

  wcuda_row_result result = WCUDA_ROW_RESULT_INIT;
  wcuda_step_output output = WCUDA_STEP_OUTPUT_INIT;
  output.row_capacity = 1;
  output.rows = &result;
  status = wcuda_step_wait(engine, ticket, -1, &output, error);
  if (status == WCUDA_OK) *sampled = result.token;
  return status;
}

static wcuda_status generate(const char* path, uint32_t count, const int32_t* prompt,
                             uint32_t prompt_count, wcuda_error* error) {
  wcuda_context context = {0};
  wcuda_gguf gguf = {0};
  wcuda_model model = {0};
  wcuda_engine engine = {0};
  wcuda_sequence sequence = {0};
  wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
  wcuda_source source = WCUDA_SOURCE_INIT;
  source.kind = WCUDA_SOURCE_PATH;
  source.path.data = path;
  source.path.bytes = strlen(path);

  wcuda_status status = wcuda_context_create(&options, &context, error);
  if (status == WCUDA_OK) status = wcuda_gguf_open(&source, &gguf, error);
  if (status == WCUDA_OK) status = wcuda_model_load(context, gguf, NULL, &model, error);
  if (status == WCUDA_OK) status = wcuda_engine_create(model, NULL, &engine, error);
  if (status == WCUDA_OK) status = wcuda_sequence_create(engine, &sequence, error);

  int32_t token = 0;
  for (uint32_t index = 0; status == WCUDA_OK && index < count; ++index) {
    const int32_t* input = index == 0 ? prompt : &token;
    status = next_token(engine, sequence, input, index == 0 ? prompt_count : 1, &token, error);
    if (status == WCUDA_OK) printf("%d%c", token, index + 1 == count ? '\n' : ' ');
  }

  wcuda_sequence_destroy(sequence);
  wcuda_engine_destroy(engine);
  wcuda_model_unload(model);
  wcuda_gguf_close(gguf);
  wcuda_context_destroy(context);
  return status;
}

int main(int argc, char** argv) {
  wcuda_error error = {0};
  if (argc < 4) {
    fprintf(stderr, "usage: %s MODEL.gguf COUNT TOKEN…\n", argv[0]);
    return 2;
  }
  const uint32_t prompt_count = (uint32_t)argc - 3;
  int32_t* prompt = malloc(prompt_count * sizeof(int32_t));
  if (prompt == NULL) return 1;
  for (uint32_t index = 0; index < prompt_count; ++index) {
    prompt[index] = (int32_t)strtol(argv[index + 3], NULL, 10);
  }
  const uint32_t count = (uint32_t)strtoul(argv[2], NULL, 10);
  const wcuda_status status = generate(argv[1], count, prompt, prompt_count, &error);
  free(prompt);
  if (status != WCUDA_OK) {
    fprintf(stderr, "%s: %s\n", wcuda_status_name(status), error.message);
    return 1;
  }
  return 0;
}
