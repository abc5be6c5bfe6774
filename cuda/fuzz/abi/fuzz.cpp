// Calls every function of the C interface and every slot of a backend's table with hostile
// arguments: abi_fuzz CALLS [THREADS [SEED [FOLDER]]].
//
// Handles are null, stale, made up, of another kind or live; structs have right and wrong sizes,
// unknown bits and a tail; numbers are small, negative and huge; callbacks call back into the
// library; a registered backend fails now and then and calls back, too. What the library is
// entitled to trust holds: memory is as long as its length says, and outlives the call. The calls
// themselves are generated from the headers. A sanitizer, a crash or a status that is none is the
// finding; the last line says how many calls returned which kind of status.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <vector>

#include "worker_cuda.h"

namespace {

#define WCUDA_FUZZ_KINDS
#include "abi_calls.inc"
#undef WCUDA_FUZZ_KINDS

constexpr size_t kScratchBytes = 32 << 20;
constexpr uint64_t kTrustedMax =
    64;  // elements or bytes the library may read where it cannot know better
constexpr size_t kPoolMax = 24;  // handles of a kind
constexpr uint64_t kBudgetBytes = 32 << 20;

// Handles that were live once, by kind; shared by all threads.
struct Pool {
  std::mutex mutex;
  std::vector<uint64_t> ids[kKindCount];

  void add(int kind, uint64_t id) {
    uint64_t oldest = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      auto& of_kind = ids[kind];
      if (of_kind.size() == kPoolMax) {
        oldest = of_kind.front();
        of_kind.erase(of_kind.begin());
      }
      of_kind.push_back(id);
    }
    if (oldest != 0) release(kind, oldest);
  }
  uint64_t pick(int kind, uint64_t random) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto& of_kind = ids[kind];
    return of_kind.empty() ? 0 : of_kind[random % of_kind.size()];
  }
} pool;

std::string folder, model_path;
const wcuda_backend_vtable* table = nullptr;  // the library's
int32_t callers_type = 0;
std::atomic<uint64_t> ok_count{0}, refused_count{0}, reentered_count{0};

template <class T, class = void>
struct grows : std::false_type {};
template <class T>
struct grows<T, std::void_t<decltype(T::struct_size)>> : std::true_type {};

// Memory that the library may use until the process ends: an open file, a borrowed buffer. In a
// list, so that a leak checker does not take it for lost.
void* keep(void* memory) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<void*>;
  const std::lock_guard<std::mutex> lock(mutex);
  kept.push_back(memory);
  return memory;
}

class Fuzzer;
thread_local Fuzzer* current = nullptr;

class Fuzzer {
 public:
  explicit Fuzzer(uint64_t seed)
      : random_(seed),
        scratch_(static_cast<char*>(keep(std::aligned_alloc(4096, kScratchBytes)))),
        structs_(1 << 16) {
    std::memset(scratch_, 0, kScratchBytes);
    made_.reserve(kMadeMax);
    current = this;
  }
  ~Fuzzer() { current = nullptr; }

  void run(uint64_t calls) {
    for (uint64_t i = 0; i < calls; ++i) {
      if (i % 512 == 0) set_up();
      step();
    }
  }

  // One call, also from inside callbacks.
  void step() {
    used_ = 0;
    call(static_cast<int>(next() % kFunctionCount));
    keep_made();
  }

  bool reenter() {
    if (depth_ != 0) return false;
    ++depth_;
    const size_t used = used_;
    const char* const name = name_;
    call(static_cast<int>(next() % kFunctionCount));
    used_ = used;
    name_ = name;
    --depth_;
    ++reentered_count;
    return true;
  }

  uint64_t next() { return random_(); }

  static void set_up_process();

 private:
  // ---- values ----

  uint64_t handle(int kind) {
    switch (next() % 8) {
      case 0:
        return 0;
      case 1:
        return next();  // made up
      case 2:
        return pool.pick(static_cast<int>(next() % kKindCount), next());  // of another kind
      case 3:
        return pool.pick(kind, next()) + (uint64_t{1} << 32);  // another generation
      default:
        return pool.pick(kind, next());
    }
  }

  template <class T>
  T number() {
    static constexpr uint64_t kValues[] = {0, 1, 2, 3, 4, 5, 8, 16, 64, 255, 4096, 1 << 20};
    const uint64_t pick = next();
    uint64_t value = kValues[pick % std::size(kValues)];
    if (pick >> 32 & 1 && pick >> 33 & 1) value = uint64_t{1} << (pick >> 34 & 63);
    if (pick >> 40 & 1 && pick >> 41 & 1 && pick >> 42 & 1) value = ~value;
    if constexpr (std::is_floating_point_v<T>) {
      static const T kFloats[] = {T(0),    T(1),      T(-1),       T(0.5),
                                  T(1e30), T(-1e-30), T(INFINITY), T(NAN)};
      return kFloats[pick % std::size(kFloats)];
    } else {
      return static_cast<T>(value);
    }
  }

  // A length of memory that the library reads or writes on the caller's word; huge where none is
  // given.
  template <class T>
  T trusted() {
    return static_cast<T>(next() % kTrustedMax);
  }

  void noise(void* target, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i)
      static_cast<unsigned char*>(target)[i] = static_cast<unsigned char>(next() % 3);
  }

  wcuda_string text() {
    static const std::string kTexts[] = {"",
                                         "host",
                                         "cuda",
                                         "noop",
                                         "vector_add",
                                         "saxpy",
                                         "softmax",
                                         "n",
                                         "1",
                                         "ceil_div(n, 4)",
                                         "general.architecture",
                                         "token_embd.weight",
                                         "\xff\xfe",
                                         std::string(300, 'x')};
    const uint64_t pick = next() % (std::size(kTexts) + 3);
    if (pick == std::size(kTexts)) return {folder.data(), folder.size()};
    if (pick == std::size(kTexts) + 1) return {model_path.data(), model_path.size()};
    if (pick == std::size(kTexts) + 2) return {nullptr, next() % 2};
    return {kTexts[pick].data(), kTexts[pick].size()};
  }

  // Memory for anything: large, of zeros and small numbers.
  template <class T>
  T pointer() {
    if (next() % 4 == 0) return nullptr;
    using Pointee = std::remove_cv_t<std::remove_pointer_t<T>>;
    if constexpr (grows<Pointee>::value) {
      return array<Pointee>(kTrustedMax);
    } else if constexpr (std::is_same_v<Pointee, wcuda_string>) {
      auto* const strings =
          reinterpret_cast<wcuda_string*>(take(sizeof(wcuda_string) * kTrustedMax));
      if (!strings) return nullptr;
      for (uint64_t i = 0; i < kTrustedMax; ++i) strings[i] = text();
      return strings;
    } else {
      // What is only read is never written; what the library writes is less than there is.
      constexpr bool kIsRead = std::is_const_v<std::remove_pointer_t<T>>;
      return reinterpret_cast<T>(scratch_ + (kIsRead ? 0 : 8 << 20));
    }
  }

  template <class T>
  T* output() {
    return next() % 8 == 0 ? nullptr : reinterpret_cast<T*>(scratch_ + (16 << 20));
  }

  template <class T>
  uint32_t size_of_struct() {
    switch (next() % 16) {
      case 0:
        return 0;
      case 1:
        return static_cast<uint32_t>(next() % sizeof(T));
      case 2:
        return sizeof(T) + 8 * (1 + next() % 4);  // a newer caller's
      case 3:
        return UINT32_MAX;
      default:
        return sizeof(T);
    }
  }

  // Room that lasts until the call has returned.
  char* take(size_t bytes) {
    if (used_ + bytes + 16384 > structs_.size()) return nullptr;
    char* const at = structs_.data() + used_;
    used_ += (bytes + 15) / 16 * 16;
    return at;
  }

  template <class T>
  T* array(uint64_t count) {
    const uint32_t size = size_of_struct<T>();
    const size_t stride = size >= sizeof(T) && size < sizeof(T) + 64 ? size : sizeof(T);
    // Structs inside structs: not more than there is room for.
    auto* const first = take(stride * count + 8192);
    if (!first) return nullptr;
    std::memset(first, 0, stride * count + 8192);
    for (uint64_t i = 0; i < count; ++i) {
      auto* const element = reinterpret_cast<T*>(first + i * stride);
      if (i < 4) fill_some(element);
      const uint32_t own = i != 0 && next() % 64 == 0 ? size_of_struct<T>() : size;
      std::memcpy(element, &own, sizeof(own));
    }
    if (stride > sizeof(T) && next() % 2)
      first[sizeof(T)] = 1;  // a field this library does not know
    return reinterpret_cast<T*>(first);
  }

  // Mostly what the INIT macro gives, with some fields changed.
  template <class T>
  void fill_some(T* target) {
    if (nesting_ == 2) return;
    ++nesting_;
    T hostile{};
    fill(&hostile);
    auto* const to = reinterpret_cast<unsigned char*>(target);
    const auto* const from = reinterpret_cast<const unsigned char*>(&hostile);
    // Whole words, so that no pointer is half of one.
    for (size_t at = 8; at + 8 <= sizeof(T); at += 8)
      if (next() % 2) std::memcpy(to + at, from + at, 8);
    if (next() % 2) std::memcpy(to + 4, from + 4, 4);
    --nesting_;
  }

  template <class T>
  T* sized() {
    return next() % 16 == 0 ? nullptr : array<T>(kElements);
  }
  // Of a buffer over the caller's memory, whose size nothing can check.
  template <class T>
  T* sized_small() {
    T* const options = sized<T>();
    if (options) options->bytes = next() % kFreshBytes;
    return options;
  }

  template <class T>
  T* made() {
    if (next() % 16 == 0) return nullptr;
    if (made_.size() == kMadeMax) return nullptr;
    made_.push_back({kind_of<T>(), 0});
    return reinterpret_cast<T*>(&made_.back().id);
  }

  // Memory that stays and that no other call has.
  void* fresh() { return next() % 8 == 0 ? nullptr : keep(std::calloc(1, kFreshBytes)); }

  wcuda_error* error() { return next() % 4 == 0 ? nullptr : &error_; }

  // A backend's `self` is its id.
  void* self() { return reinterpret_cast<void*>(handle(kind_of<wcuda_backend>())); }
  wcuda_device_memory memory() {
    wcuda_device_memory result = memories_[next() % std::size(memories_)];
    if (next() % 4 == 0) result.id = handle(kind_of<wcuda_buffer>());
    if (next() % 8 == 0) result.bytes = number<uint64_t>();
    return result;
  }
  wcuda_device_memory* made_memory() {
    return next() % 16 == 0 ? nullptr : &memories_[next() % std::size(memories_)];
  }

  template <class T>
  T callback();
  static const wcuda_backend_vtable* callers_table();

  void status(wcuda_status code) {
    if (code == WCUDA_OK) {
      ++ok_count;
    } else {
      ++refused_count;
      if (std::strcmp(wcuda_status_name(code), "WCUDA_UNKNOWN") == 0) {
        std::fprintf(stderr, "%s returned %d, which is no status\n", name_, code);
        std::abort();
      }
      if (code == WCUDA_INTERNAL) {
        std::fprintf(stderr, "%s: %s\n", name_, error_.message);
        std::abort();
      }
    }
  }

  void keep_made() {
    for (const Made& each : made_)
      if (each.id != 0) pool.add(each.kind, each.id);
    made_.clear();
  }

  // Live objects of every kind, so that handles are not all stale.
  void set_up();

#define WCUDA_FUZZ_FILL
#include "abi_calls.inc"
#undef WCUDA_FUZZ_FILL
#define WCUDA_FUZZ_CALLS
#include "abi_calls.inc"
#undef WCUDA_FUZZ_CALLS

  struct Made {
    int kind;
    uint64_t id;
  };
  static constexpr uint64_t kElements = kTrustedMax;
  static constexpr size_t kMadeMax = 16, kFreshBytes = 256;
  std::mt19937_64 random_;
  char* const scratch_;
  std::vector<char> structs_;
  size_t used_ = 0;
  int nesting_ = 0, depth_ = 0;
  std::vector<Made> made_;
  wcuda_device_memory memories_[16]{};
  wcuda_error error_{};
  const char* name_ = "";
};

// ---- callbacks: each calls back into the library now and then ----

void call_back() {
  if (current && current->next() % 4 == 0) current->reenter();
}

void on_log(void*, int32_t, wcuda_string, wcuda_string) {}
int32_t on_progress(void*, int32_t, uint64_t, uint64_t) {
  call_back();
  return current && current->next() % 8 == 0;
}
int32_t on_read(void*, uint64_t, void* target, uint64_t bytes) {
  std::memset(target, 0, bytes);
  return 0;
}
int32_t on_kernel(void*, const wcuda_launch*, const wcuda_host_argument*, uint64_t) {
  call_back();
  return 0;
}
void on_trace(void*, wcuda_string) { call_back(); }
void on_zctl(void*, const wcuda_zctl_record*) { call_back(); }
void on_failover(void*, const wcuda_failover_event*) { call_back(); }
wcuda_status on_body(void*, wcuda_context, wcuda_error*) { return WCUDA_CANCELLED; }

// A caller's backend: the library's table for HOST behind another, that fails now and then and
// calls back.
wcuda_status on_open(void*, int32_t, void** self, wcuda_error* error) {
  call_back();
  if (current && current->next() % 8 == 0) return WCUDA_NO_DEVICE;
  wcuda_backend_options options = WCUDA_BACKEND_OPTIONS_INIT;
  options.type = WCUDA_BACKEND_HOST;
  options.memory_budget = kBudgetBytes;
  options.host_thread_count = 1;
  wcuda_backend inner{0};
  const wcuda_status status = wcuda_backend_open(&options, &inner, error);
  *self = reinterpret_cast<void*>(inner.id);
  return status;
}

template <auto Slot, class F = std::decay_t<decltype(table->*Slot)>>
struct Forward;
template <auto Slot, class R, class... A>
struct Forward<Slot, R (*)(void*, A...)> {
  static R call(void* self, A... arguments) {
    call_back();
    if constexpr (std::is_same_v<R, wcuda_status>) {
      static constexpr wcuda_status kFailures[] = {WCUDA_DEVICE_ERROR, WCUDA_OUT_OF_MEMORY,
                                                   WCUDA_UNSUPPORTED, WCUDA_DEVICE_LOST};
      if (current && current->next() % 32 == 0)
        return kFailures[current->next() % std::size(kFailures)];
    }
    return (table->*Slot)(self, arguments...);
  }
};
#define WCUDA_FUZZ_TABLE
#include "abi_calls.inc"
#undef WCUDA_FUZZ_TABLE

const wcuda_backend_vtable* Fuzzer::callers_table() {
  static const wcuda_backend_vtable result = [] {
    wcuda_backend_vtable made = WCUDA_BACKEND_VTABLE_INIT;
    fill_callers_table(&made);
    return made;
  }();
  return &result;
}

template <class T>
T Fuzzer::callback() {
  if (next() % 4 == 0) return nullptr;
  if constexpr (std::is_same_v<T, wcuda_log_callback>) return on_log;
  if constexpr (std::is_same_v<T, wcuda_progress_callback>) return on_progress;
  if constexpr (std::is_same_v<T, wcuda_read_callback>) return on_read;
  if constexpr (std::is_same_v<T, wcuda_host_kernel>) return on_kernel;
  if constexpr (std::is_same_v<T, wcuda_trace_callback>) return on_trace;
  if constexpr (std::is_same_v<T, wcuda_failover_callback>) return on_failover;
  if constexpr (std::is_same_v<T, wcuda_zctl_recorder>) return on_zctl;
  if constexpr (std::is_same_v<T, wcuda_failover_body>) return on_body;
  if constexpr (std::is_same_v<T, decltype(wcuda_backend_registration::open)>) return on_open;
  return nullptr;
}

// What the process has one of: the library's table, and a type that a caller registered.
void Fuzzer::set_up_process() {
  wcuda_backend_options options = WCUDA_BACKEND_OPTIONS_INIT;
  options.type = WCUDA_BACKEND_HOST;
  wcuda_backend backend{0};
  void* self = nullptr;
  wcuda_backend_registration registration = WCUDA_BACKEND_REGISTRATION_INIT;
  if (wcuda_backend_open(&options, &backend, nullptr) != WCUDA_OK ||
      wcuda_backend_table_get(backend, &table, &self, nullptr) != WCUDA_OK)
    std::abort();
  wcuda_backend_close(backend);
  registration.name = {"caller", 6};
  registration.priority = -1;
  registration.table = callers_table();
  registration.open = on_open;
  if (wcuda_backend_register(&registration, &callers_type, nullptr) != WCUDA_OK) std::abort();
}

void Fuzzer::set_up() {
  (void)wcuda_raw_reset(WCUDA_BACKEND_HOST, nullptr);
  wcuda_context context{0};
  wcuda_context_options options = WCUDA_CONTEXT_OPTIONS_INIT;
  options.backend = WCUDA_BACKEND_HOST;
  options.memory_budget = kBudgetBytes;
  options.host_thread_count = 1;
  if (wcuda_context_create(&options, &context, nullptr) != WCUDA_OK) std::abort();
  pool.add(kind_of<wcuda_context>(), context.id);
  const auto add = [&](auto create) {
    auto [status, kind, id] = create();
    if (status == WCUDA_OK) pool.add(kind, id);
  };
  wcuda_buffer_options bytes = WCUDA_BUFFER_OPTIONS_INIT;
  for (const uint64_t size : {1u, 64u, 4096u}) {
    bytes.bytes = size;
    wcuda_buffer buffer{0};
    add([&] {
      return std::tuple(wcuda_buffer_create(context, &bytes, &buffer, nullptr),
                        kind_of<wcuda_buffer>(), buffer.id);
    });
  }
  wcuda_pinned pinned{0};
  if (wcuda_pinned_create(context, 4096, &pinned, nullptr) == WCUDA_OK)
    pool.add(kind_of<wcuda_pinned>(), pinned.id);
  wcuda_stream stream{0};
  if (wcuda_stream_create(context, 0, &stream, nullptr) == WCUDA_OK)
    pool.add(kind_of<wcuda_stream>(), stream.id);
  wcuda_event event{0};
  if (wcuda_event_create(context, &event, nullptr) == WCUDA_OK)
    pool.add(kind_of<wcuda_event>(), event.id);
  wcuda_registry registry{0};
  if (wcuda_registry_create(context, &registry, nullptr) == WCUDA_OK) {
    pool.add(kind_of<wcuda_registry>(), registry.id);
    for (const char* const name : {"noop", "tensor_add", "softmax"})
      (void)wcuda_registry_add_builtin(registry, {name, std::strlen(name)}, WCUDA_ARG_F32, 0,
                                       nullptr, nullptr);
  }
  wcuda_source source = WCUDA_SOURCE_INIT;
  source.kind = WCUDA_SOURCE_PATH;
  source.path = {model_path.data(), model_path.size()};
  wcuda_gguf gguf{0};
  wcuda_model model{0};
  wcuda_engine engine{0};
  wcuda_sequence sequence{0};
  wcuda_engine_options limits = WCUDA_ENGINE_OPTIONS_INIT;
  limits.max_sequences = 4;
  limits.max_batch_tokens = 16;
  limits.max_sequence_tokens = 64;
  limits.max_draft_tokens = 8;
  limits.flags = WCUDA_ENGINE_TOKEN_LOGPROBS;
  if (wcuda_gguf_open(&source, &gguf, nullptr) != WCUDA_OK) std::abort();
  pool.add(kind_of<wcuda_gguf>(), gguf.id);
  if (wcuda_model_load(context, gguf, nullptr, &model, nullptr) == WCUDA_OK) {
    pool.add(kind_of<wcuda_model>(), model.id);
    if (wcuda_engine_create(model, &limits, &engine, nullptr) == WCUDA_OK) {
      pool.add(kind_of<wcuda_engine>(), engine.id);
      if (wcuda_sequence_create(engine, &sequence, nullptr) == WCUDA_OK)
        pool.add(kind_of<wcuda_sequence>(), sequence.id);
    }
  }
  wcuda_backend_options backend_options = WCUDA_BACKEND_OPTIONS_INIT;
  backend_options.type = WCUDA_BACKEND_HOST;
  backend_options.flags = WCUDA_BACKEND_WITH_FAULTS;
  backend_options.trace = on_trace;
  backend_options.memory_budget = kBudgetBytes;
  backend_options.host_thread_count = 1;
  wcuda_backend backend{0};
  if (wcuda_backend_open(&backend_options, &backend, nullptr) == WCUDA_OK) {
    pool.add(kind_of<wcuda_backend>(), backend.id);
    wcuda_context traced{0};
    if (wcuda_backend_context_create(backend, &traced, nullptr) == WCUDA_OK)
      pool.add(kind_of<wcuda_context>(), traced.id);
  }
  wcuda_context of_caller{0};
  options.backend = callers_type;
  if (wcuda_context_create(&options, &of_caller, nullptr) == WCUDA_OK) {
    pool.add(kind_of<wcuda_context>(), of_caller.id);
    wcuda_buffer buffer{0};
    if (wcuda_buffer_create(of_caller, &bytes, &buffer, nullptr) == WCUDA_OK)
      pool.add(kind_of<wcuda_buffer>(), buffer.id);
  }
  backend_options.type = callers_type;
  if (wcuda_backend_open(&backend_options, &backend, nullptr) == WCUDA_OK)
    pool.add(kind_of<wcuda_backend>(), backend.id);
  wcuda_kernel_options kernel_options = WCUDA_KERNEL_OPTIONS_INIT;
  kernel_options.name = {"k", 1};
  kernel_options.host = on_kernel;
  wcuda_kernel kernel{0};
  if (wcuda_kernel_create(context, &kernel_options, &kernel, nullptr) == WCUDA_OK)
    pool.add(kind_of<wcuda_kernel>(), kernel.id);
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t calls = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 100000;
  const int threads = argc > 2 ? std::atoi(argv[2]) : 1;
  const uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
  folder = std::filesystem::absolute(argc > 4 ? argv[4] : "/tmp").string();
  // Of the texts that it makes up some become folders, as that of a cache.
  std::filesystem::current_path(folder);
  model_path = WCUDA_FUZZ_MODEL;
  Fuzzer::set_up_process();
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i)
    all.emplace_back([=] {
      Fuzzer fuzzer(seed + static_cast<uint64_t>(i));
      fuzzer.run(calls / static_cast<uint64_t>(threads));
    });
  for (std::thread& each : all) each.join();
  std::printf("%" PRIu64 " calls on %d threads, seed %" PRIu64 ": %" PRIu64 " accepted, %" PRIu64
              " refused, %" PRIu64 " from inside callbacks\n",
              calls, threads, seed, ok_count.load(), refused_count.load(), reentered_count.load());
  return 0;
}
