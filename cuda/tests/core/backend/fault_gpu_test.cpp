// A kernel loaded at run time that traps loses the device for the whole process, so this is a
// program of its own.
#include <cstdio>
#include <cstring>
#include <string>

#include "worker_cuda.h"

namespace {

constexpr uint64_t kBufferBytes = 4096;
int failures = 0;

#define CHECK(condition)                                         \
  do {                                                           \
    if (!(condition)) {                                          \
      std::printf("FAILED line %d: %s\n", __LINE__, #condition); \
      ++failures;                                                \
    }                                                            \
  } while (0)

// Loaded at run time: one kernel that traps, one that does nothing.
constexpr char kTrap[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry trap_kernel() {\n  trap;\n  ret;\n}\n"
    ".visible .entry idle_kernel() {\n  ret;\n}\n";

// Code of the caller's own.
struct Code {
  wcuda_module module{0};
  wcuda_kernel trap{0};
  wcuda_kernel idle{0};
};

wcuda_context create(int32_t backend, wcuda_status* status, wcuda_error* error) {
  wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
  options.backend = backend;
  wcuda_context context{0};
  *status = wcuda_context_create(&options, &context, error);
  return context;
}

wcuda_buffer create_buffer(wcuda_context context, wcuda_status* status) {
  wcuda_buffer_options options = WCUDA_BUFFER_OPTIONS_INIT;
  options.bytes = kBufferBytes;
  wcuda_buffer buffer{0};
  *status = wcuda_buffer_create(context, &options, &buffer, nullptr);
  return buffer;
}

wcuda_kernel find_kernel(wcuda_context context, wcuda_module module, const char* name) {
  wcuda_kernel_options options = WCUDA_KERNEL_OPTIONS_INIT;
  options.name = {name, std::strlen(name)};
  options.module = module;
  wcuda_kernel kernel{0};
  CHECK(wcuda_kernel_create(context, &options, &kernel, nullptr) == WCUDA_OK);
  return kernel;
}

Code load_code(wcuda_context context) {
  Code code;
  CHECK(wcuda_module_load(context, kTrap, sizeof(kTrap) - 1, &code.module, nullptr) == WCUDA_OK);
  code.trap = find_kernel(context, code.module, "trap_kernel");
  code.idle = find_kernel(context, code.module, "idle_kernel");
  return code;
}

// What the driver will not start is no fault: blocks that must all run at once, and cannot.
void expect_refused_launch(wcuda_context context, const Code& code) {
  wcuda_launch launch = WCUDA_LAUNCH_INIT;
  launch.flags = WCUDA_LAUNCH_COOPERATIVE;
  launch.grid[0] = 1 << 20;
  CHECK(wcuda_kernel_launch(code.idle, &launch, nullptr, 0, nullptr) == WCUDA_LAUNCH_FAILED);
  launch.flags = 0;
  launch.block[0] = 0;
  CHECK(wcuda_kernel_launch(code.idle, &launch, nullptr, 0, nullptr) == WCUDA_INVALID_CONFIG);
  launch.block[0] = 32;
  CHECK(wcuda_kernel_launch(code.idle, &launch, nullptr, 0, nullptr) == WCUDA_OK);
  CHECK(wcuda_context_synchronize(context, nullptr) == WCUDA_OK);
  wcuda_health health = WCUDA_HEALTH_INIT;
  CHECK(wcuda_health_get(context, &health, nullptr) == WCUDA_OK);
  CHECK(health.state != WCUDA_HEALTH_LOST);
}

void expect_code_lost(wcuda_context context, const Code& code) {
  const wcuda_launch launch = WCUDA_LAUNCH_INIT;
  wcuda_module module{0};
  CHECK(wcuda_kernel_launch(code.idle, &launch, nullptr, 0, nullptr) == WCUDA_DEVICE_LOST);
  CHECK(wcuda_module_load(context, kTrap, sizeof(kTrap) - 1, &module, nullptr) ==
        WCUDA_DEVICE_LOST);
  CHECK(module.id == 0);
  wcuda_kernel_destroy(code.idle);
  wcuda_kernel_destroy(code.trap);
  wcuda_module_unload(code.module);
}

void expect_lost(wcuda_context context, wcuda_buffer buffer) {
  wcuda_error error{};
  uint8_t data[32];
  wcuda_status status;
  CHECK(wcuda_context_synchronize(context, &error) == WCUDA_DEVICE_LOST);
  CHECK(error.native_code != 0);
  std::printf("message: %s\n", error.message);
  CHECK(wcuda_buffer_read(buffer, 0, data, 32, nullptr) == WCUDA_DEVICE_LOST);
  CHECK(wcuda_buffer_write(buffer, 0, data, 32, nullptr) == WCUDA_DEVICE_LOST);
  CHECK(wcuda_buffer_fill(buffer, 0, 32, 0, 1, nullptr) == WCUDA_DEVICE_LOST);
  CHECK(wcuda_buffer_digest(buffer, 0, 32, data, nullptr) == WCUDA_DEVICE_LOST);
  create_buffer(context, &status);
  CHECK(status == WCUDA_DEVICE_LOST);

  wcuda_health health = WCUDA_HEALTH_INIT;
  CHECK(wcuda_health_get(context, &health, nullptr) == WCUDA_OK);
  CHECK(health.state == WCUDA_HEALTH_LOST);
  CHECK(health.sticky_code == error.native_code);
  CHECK(std::strlen(health.message) > 0);
}

// A model and an engine with one sequence and one step in flight.
struct Machine {
  wcuda_gguf gguf{0};
  wcuda_model model{0};
  wcuda_engine engine{0};
  wcuda_sequence sequence{0};
  uint64_t ticket = 0;
};

wcuda_status submit(const Machine& machine, uint64_t* ticket) {
  static const int32_t tokens[] = {1, 2, 3};
  wcuda_row row = WCUDA_ROW_INIT;
  row.sequence = machine.sequence;
  row.tokens = tokens;
  row.token_count = 3;
  row.flags = WCUDA_ROW_SAMPLE;
  wcuda_step step = WCUDA_STEP_INIT;
  step.row_count = 1;
  step.rows = &row;
  return wcuda_step_submit(machine.engine, &step, ticket, nullptr);
}

wcuda_status wait(const Machine& machine, uint64_t ticket, wcuda_error* error) {
  wcuda_row_result row = WCUDA_ROW_RESULT_INIT;
  wcuda_step_output output = WCUDA_STEP_OUTPUT_INIT;
  output.row_capacity = 1;
  output.rows = &row;
  return wcuda_step_wait(machine.engine, ticket, -1, &output, error);
}

wcuda_engine_options engine_options() {
  wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
  options.max_sequences = 4;
  options.max_sequence_tokens = 128;
  return options;
}

Machine start_machine(wcuda_context context) {
  Machine machine;
  wcuda_source source = WCUDA_SOURCE_INIT;
  source.kind = WCUDA_SOURCE_PATH;
  const char path[] = WCUDA_TEST_DATA "/models/qwen3.gguf";
  source.path = {path, sizeof(path) - 1};
  const wcuda_engine_options options = engine_options();
  uint64_t ticket = 0;
  CHECK(wcuda_gguf_open(&source, &machine.gguf, nullptr) == WCUDA_OK);
  CHECK(wcuda_model_load(context, machine.gguf, nullptr, &machine.model, nullptr) == WCUDA_OK);
  CHECK(wcuda_engine_create(machine.model, &options, &machine.engine, nullptr) == WCUDA_OK);
  CHECK(wcuda_sequence_create(machine.engine, &machine.sequence, nullptr) == WCUDA_OK);
  CHECK(submit(machine, &ticket) == WCUDA_OK);
  CHECK(wait(machine, ticket, nullptr) == WCUDA_OK);
  CHECK(submit(machine, &machine.ticket) == WCUDA_OK);
  return machine;
}

// The step in flight, and all that is asked later.
void expect_machine_lost(wcuda_context context, const Machine& machine) {
  const wcuda_engine_options options = engine_options();
  wcuda_error error{};
  wcuda_model model{0};
  wcuda_engine engine{0};
  wcuda_sequence sequence{0};
  wcuda_plan plan = WCUDA_PLAN_INIT;
  uint64_t ticket = 0;
  CHECK(wait(machine, machine.ticket, &error) == WCUDA_DEVICE_LOST);
  CHECK(std::strlen(error.message) > 0 && error.native_code != 0);
  CHECK(submit(machine, &ticket) == WCUDA_DEVICE_LOST);
  CHECK(wcuda_engine_warm_up(machine.engine, nullptr) == WCUDA_DEVICE_LOST);
  CHECK(wcuda_engine_drain(machine.engine, nullptr) == WCUDA_DEVICE_LOST);
  CHECK(wcuda_sequence_create(machine.engine, &sequence, nullptr) == WCUDA_DEVICE_LOST);
  CHECK(wcuda_sequence_fork(machine.sequence, &sequence, nullptr) == WCUDA_DEVICE_LOST);
  CHECK(wcuda_model_verify(machine.model, nullptr) == WCUDA_DEVICE_LOST);
  CHECK(wcuda_model_load(context, machine.gguf, nullptr, &model, nullptr) == WCUDA_DEVICE_LOST);
  CHECK(wcuda_engine_create(machine.model, &options, &engine, nullptr) == WCUDA_DEVICE_LOST);
  CHECK(wcuda_plan_get(context, machine.gguf, &options, &plan, nullptr) == WCUDA_DEVICE_LOST);
  CHECK(model.id == 0 && engine.id == 0 && sequence.id == 0 && ticket == 0);
}

// Leaves the test's buffer in the ledger, and nothing else.
void stop_machine(wcuda_context context, const Machine& machine) {
  wcuda_sequence_destroy(machine.sequence);
  wcuda_engine_destroy(machine.engine);
  wcuda_model_unload(machine.model);
  wcuda_gguf_close(machine.gguf);
  wcuda_health health = WCUDA_HEALTH_INIT;
  CHECK(wcuda_health_get(context, &health, nullptr) == WCUDA_OK);
  CHECK(health.ledger_bytes == kBufferBytes && health.staging_bytes == 0);
}

void expect_works(wcuda_context context) {
  wcuda_status status;
  const wcuda_buffer buffer = create_buffer(context, &status);
  CHECK(status == WCUDA_OK);
  CHECK(wcuda_buffer_fill(buffer, 0, 4096, 7, 1, nullptr) == WCUDA_OK);
  wcuda_buffer_destroy(buffer);
}

}  // namespace

// 0: passed, 1: failed, 77: no device.
int main() {
  wcuda_status status;
  wcuda_error error{};
  const wcuda_context first = create(WCUDA_BACKEND_CUDA, &status, &error);
  if (status != WCUDA_OK) {
    std::printf("skipped: %s\n", error.message);
    return 77;
  }
  const wcuda_context second = create(WCUDA_BACKEND_CUDA, &status, &error);
  const wcuda_context host = create(WCUDA_BACKEND_HOST, &status, &error);
  const wcuda_buffer buffer = create_buffer(first, &status);
  const wcuda_buffer other = create_buffer(second, &status);
  CHECK(status == WCUDA_OK);
  const Machine machine = start_machine(first);

  const Code code = load_code(first);
  const Code other_code = load_code(second);
  expect_refused_launch(first, code);

  // The launch succeeds; the first call that waits reports the kernel's fault.
  const wcuda_launch launch = WCUDA_LAUNCH_INIT;
  CHECK(wcuda_kernel_launch(code.trap, &launch, nullptr, 0, &error) == WCUDA_OK);
  CHECK(wcuda_context_synchronize(first, &error) == WCUDA_DEVICE_LOST);

  expect_code_lost(first, code);
  expect_code_lost(second, other_code);
  expect_lost(first, buffer);
  expect_machine_lost(first, machine);
  expect_lost(second, other);
  expect_works(host);
  create(WCUDA_BACKEND_CUDA, &status, &error);
  CHECK(status == WCUDA_DEVICE_LOST);
  create(WCUDA_BACKEND_AUTO, &status, &error);
  CHECK(status == WCUDA_DEVICE_LOST);  // a device that is there and fails is no reason for the host

  stop_machine(first, machine);
  wcuda_context_destroy(first);
  wcuda_buffer_destroy(buffer);
  wcuda_buffer_destroy(other);
  wcuda_context_destroy(second);
  expect_works(host);
  wcuda_context_destroy(host);
  std::printf("%d checks failed\n", failures);
  return failures ? 1 : 0;
}
