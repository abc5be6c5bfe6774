// Speed of whole models through the C interface: loading, decoding, many streams, prompts, the
// first token of a process, and the host's share of a step. Results are checked before anything is
// timed.
//
//   e2e_bench [--backend auto|cuda|host] [--threads N] [--repeat N] [--depths A,B] [--streams A,B]
//             [--prompts A,B] [--tokens N] [--batch N] [--kv f16|q8_0|fp8|int10]
//             [--batch-invariant off|on] [--folder DIR] [--json FILE]
//             [SHAPE:MIX:WORK,WORK…[:OPTION=VALUE;…]]…
//   e2e_bench --write SHAPE:MIX FILE     (with a vocabulary, so that it can be served)
//   e2e_bench --serve FILE THREADS
//
// --serve loads a model on the host backend and does what its input asks for, line by line, as
// tools/dev/cpu_peer.py has it: "prefill N" of an empty sequence, "decode N" after the last
// prefill; it answers with the seconds.
//
// WORK: load, decode, streams, prefill, first, host, mixed (prompts arrive while sequences decode),
// shared (sequences with a common prefix), profile (the nodes of a step of each number of streams
// and of each prompt, summed over the layers). Works on files (load from a file, first) need
// --folder, a place with room for the model; the file is removed. A model's own options come before
// those of the command line. Without a list: 8B on CUDA, SmolLM2's shape on the host. Limits are
// those of the step's plan.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "bench/e2e_report.h"
#include "bench/e2e_session.h"
#include "bench/synthetic_model.h"
#include "core/base/cpu.h"
#include "llm/ops/host/kernels.h"

extern char** environ;

namespace wcuda::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kCopyBytesPerSecond = 53e9;        // page cache to an H200, measured 2026-11-21
constexpr double kCudaStartSeconds = 0.32;          // likewise
constexpr uint64_t kLargeModelBytes = 20000000000;  // loaded once only
constexpr uint32_t kStreamPrompt = 128, kStreamTokens = 64;
constexpr uint32_t kHostSteps = 64;
constexpr uint32_t kCheckedPrompt = 100, kCheckedSteps = 32;
constexpr uint32_t kMixedStreams = 64, kMixedDepth = 1024, kMixedPrompts = 8, kMixedPrompt = 4096,
                   kMixedChunk = 704;  // with the streams three tiles of 256 tokens
constexpr uint32_t kSharedStreams = 64, kSharedPrefix = 4096;
constexpr const char* kKvNames[] = {"f16", "q8_0", "fp8", "int10"};

struct Options {
  int32_t backend = WCUDA_BACKEND_AUTO;
  uint32_t threads = 0;
  uint32_t repeat = 5;
  uint32_t tokens = 128;
  uint32_t batch = 0;
  int32_t kv_type = WCUDA_KV_F16;
  int32_t batch_invariant = 0;
  std::vector<uint32_t> depths, streams, prompts;
  std::string folder, json;
  std::vector<std::string> specs;
};

struct Spec {
  std::string shape, mix;
  std::vector<std::string> works;
  Options options;

  bool has(const char* work) const {
    for (const std::string& name : works)
      if (name == work) return true;
    return false;
  }
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts{""};
  for (const char c : text) {
    if (c == separator)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

std::vector<uint32_t> numbers(const std::string& text) {
  std::vector<uint32_t> list;
  for (const std::string& part : split(text, ','))
    list.push_back(static_cast<uint32_t>(std::strtoul(part.c_str(), nullptr, 10)));
  return list;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

wcuda_source file_source(const char* path) {
  wcuda_source source = WCUDA_SOURCE_INIT;
  source.kind = WCUDA_SOURCE_PATH;
  source.path = {path, std::strlen(path)};
  return source;
}

// Runs `work` once to warm up, then `repeat` times; `amount` per second of each.
Result<std::vector<double>> rates(uint32_t repeat, double amount,
                                  const std::function<Status()>& prepare,
                                  const std::function<Status()>& work) {
  std::vector<double> values;
  for (uint32_t i = 0; i <= repeat; ++i) {
    WCUDA_TRY(prepare());
    const Clock::time_point begin = Clock::now();
    WCUDA_TRY(work());
    if (i > 0) values.push_back(amount / seconds_since(begin));
  }
  return values;
}

// One model and the works asked for.
class ModelBench {
 public:
  ModelBench(const Device& device, Spec spec, Report* report)
      : device_(device), spec_(std::move(spec)), options_(spec_.options), report_(*report) {}

  Status run() {
    WCUDA_ASSIGN(model_, SyntheticModel::make(spec_.shape, spec_.mix));
    name_ = spec_.shape + " " + spec_.mix + (options_.batch_invariant ? " invariant " : " ");
    if (options_.kv_type != WCUDA_KV_F16)
      name_ += std::string("KV ") + kKvNames[options_.kv_type] + " ";
    WCUDA_TRY(run_on_file());
    WCUDA_TRY(run_load());
    WCUDA_TRY(open_session());
    if (session_ == nullptr) return {};
    WCUDA_TRY(check());
    if (spec_.has("decode")) WCUDA_TRY(run_decode());
    if (spec_.has("streams")) WCUDA_TRY(run_streams());
    if (spec_.has("prefill")) WCUDA_TRY(run_prefill());
    if (spec_.has("host")) WCUDA_TRY(run_host());
    if (spec_.has("mixed")) WCUDA_TRY(run_mixed());
    if (spec_.has("shared")) WCUDA_TRY(run_shared());
    if (spec_.has("profile")) WCUDA_TRY(run_profile());
    return {};
  }

 private:
  uint32_t load_repeat() const { return model_.bytes() > kLargeModelBytes ? 1 : options_.repeat; }
  double copy_limit() const {
    return device_.backend == WCUDA_BACKEND_CUDA ? kCopyBytesPerSecond : 0;
  }

  // Loads from `source` again and again, one that warms up first.
  Result<std::vector<double>> load_rates(const wcuda_source& source) {
    std::vector<double> values;
    for (uint32_t i = 0; i <= load_repeat(); ++i) {
      double seconds = 0.0;
      loaded_ = Model();
      WCUDA_ASSIGN(loaded_, load(device_, source, &seconds));
      if (i > 0) values.push_back(static_cast<double>(model_.bytes()) / seconds * 1e-9);
    }
    return values;
  }

  Status run_load() {
    const wcuda_source source = model_.source();
    double seconds = 0.0;
    if (spec_.has("load")) {
      WCUDA_ASSIGN(std::vector<double> values, load_rates(source));
      WCUDA_TRY(report_.add(
          {name_ + "load from callback", "GB/s", std::move(values), copy_limit() * 1e-9}));
      return {};
    }
    WCUDA_ASSIGN(loaded_, load(device_, source, &seconds));
    return {};
  }

  // The works that need the model as a file, freshly written and so in the page cache.
  Status run_on_file() {
    if (options_.folder.empty() || !(spec_.has("load") || spec_.has("first"))) return {};
    const std::string path = options_.folder + "/" + spec_.shape + "-" + spec_.mix + ".gguf";
    WCUDA_TRY(model_.write(path));
    const Status status = time_file(path);
    std::remove(path.c_str());
    return status;
  }

  Status time_file(const std::string& path) {
    if (spec_.has("load")) {
      WCUDA_ASSIGN(std::vector<double> values, load_rates(file_source(path.c_str())));
      WCUDA_TRY(
          report_.add({name_ + "load from file", "GB/s", std::move(values), copy_limit() * 1e-9}));
      loaded_ = Model();
    }
    if (!spec_.has("first")) return {};
    std::vector<double> values;
    for (uint32_t i = 0; i <= load_repeat(); ++i) {
      WCUDA_ASSIGN(const double seconds, time_first_token(path));
      if (i > 0) values.push_back(seconds);
    }
    const double limit =
        copy_limit() > 0 ? kCudaStartSeconds + static_cast<double>(model_.bytes()) / copy_limit()
                         : 0;
    WCUDA_TRY(report_.add({name_ + "first token", "s", std::move(values), limit}));
    return {};
  }

  // From the start of a process of this program to the token it writes.
  Result<double> time_first_token(const std::string& path) const {
    int ends[2];
    if (::pipe(ends) != 0) return Status::error(WCUDA_IO, "no pipe");
    const std::string backend = std::to_string(options_.backend), target = std::to_string(ends[1]);
    const std::string threads = std::to_string(options_.threads);
    const char* const arguments[] = {"e2e_bench",     "--first-token", path.c_str(),
                                     backend.c_str(), threads.c_str(), target.c_str(),
                                     nullptr};
    const Clock::time_point begin = Clock::now();
    pid_t child = 0;
    const int failed = ::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr,
                                     const_cast<char* const*>(arguments), environ);
    ::close(ends[1]);
    int32_t token = -1;
    const bool got = failed == 0 && ::read(ends[0], &token, sizeof token) == sizeof token;
    const double seconds = seconds_since(begin);
    ::close(ends[0]);
    if (failed == 0) ::waitpid(child, nullptr, 0);
    if (!got) return Status::error(WCUDA_INTERNAL, "the process for the first token gave none");
    return seconds;
  }

  Status open_session() {
    uint32_t sequences = 1, longest = 256;
    uint64_t kv_tokens = 0;
    const auto need = [&](uint32_t count, uint32_t length) {
      sequences = std::max(sequences, count);
      longest = std::max(longest, length);
      kv_tokens = std::max(kv_tokens, uint64_t{count} * ((length + 63) / 64 * 64 + 64));
    };
    need(1, 256);
    if (spec_.has("decode"))
      for (const uint32_t depth : options_.depths) need(1, depth + options_.tokens + 64);
    if (spec_.has("streams") || spec_.has("profile"))
      for (const uint32_t count : options_.streams) need(count, kStreamPrompt + kStreamTokens + 64);
    if (spec_.has("prefill") || spec_.has("profile"))
      for (const uint32_t prompt : options_.prompts) need(1, prompt + 64);
    if (spec_.has("host")) need(host_rows(), kStreamPrompt + kHostSteps + 64);
    if (spec_.has("mixed")) need(kMixedStreams + kMixedPrompts, kMixedPrompt + 64);
    if (spec_.has("shared"))
      need(kSharedStreams, kSharedPrefix + kStreamPrompt + kStreamTokens + 64);
    if (spec_.works == std::vector<std::string>{"load"}) return {};
    wcuda_engine_options& engine = engine_;
    engine.kv_type = options_.kv_type;
    engine.flags = options_.batch_invariant ? WCUDA_ENGINE_BATCH_INVARIANT : 0;
    sequence_count_ = sequences;
    engine.max_sequences = sequences;
    engine.max_batch_tokens = std::max({options_.batch, sequences, kMixedStreams + kMixedChunk});
    engine.max_sequence_tokens = longest;
    engine.kv_tokens = kv_tokens;
    WCUDA_ASSIGN(session_, Session::open(device_, loaded_.get(), engine));
    double seconds = 0.0;
    WCUDA_ASSIGN(const uint64_t before, free_bytes());
    WCUDA_TRY(session_->warm_up(&seconds));
    WCUDA_ASSIGN(const uint64_t after, free_bytes());
    char text[160];
    std::snprintf(text, sizeof text, "%swarm-up %.2f s", name_.c_str(), seconds);
    report_.note(text);
    if (device_.backend != WCUDA_BACKEND_CUDA) return {};
    const double megabytes = (static_cast<double>(before) - static_cast<double>(after)) * 1e-6;
    return report_.add({name_ + "graphs", "MB", {megabytes}, 0});
  }

  Result<uint64_t> free_bytes() const {
    wcuda_error error{};
    wcuda_memory_info info = WCUDA_MEMORY_INFO_INIT;
    WCUDA_TRY(to_status(
        wcuda_context_memory_get(device_.context.get(), WCUDA_PURPOSE_ANY, &info, &error), error));
    return info.device_free_bytes;
  }

  // Seconds of a step at the device's limits, by its plan; 0 where these are not known.
  Result<double> limit(uint32_t rows, uint32_t row_tokens, double context) const {
    wcuda_error error{};
    Gguf gguf;
    const wcuda_source source = model_.source();
    WCUDA_TRY(to_status(wcuda_gguf_open(&source, gguf.out(), &error), error));
    wcuda_step_shape shape = WCUDA_STEP_SHAPE_INIT;
    shape.row_count = rows;
    shape.row_tokens = row_tokens;
    shape.context_tokens = static_cast<uint32_t>(context);
    const auto list = [&](wcuda_step_node* nodes, uint64_t capacity, uint64_t* count) {
      return to_status(
          wcuda_plan_steps_list(device_.context.get(), gguf.get(), &engine_, &shape, {nullptr, 0},
                                nullptr, 0, nodes, capacity, count, &error),
          error);
    };
    uint64_t count = 0;
    WCUDA_TRY(list(nullptr, 0, &count));
    std::vector<wcuda_step_node> nodes(count, WCUDA_STEP_NODE_INIT);
    WCUDA_TRY(list(nodes.data(), count, &count));
    double seconds = 0.0;
    for (const wcuda_step_node& node : nodes) seconds += node.limit_ns * 1e-9;
    return seconds;
  }
  // As a rate of `amount` in that time.
  static double rate(double amount, double seconds) { return seconds > 0.0 ? amount / seconds : 0; }

  // Two runs of one prompt, tokens fed by the device and by the caller, must agree, with finite
  // logits; so must two runs of many sequences.
  Status check() {
    std::vector<int32_t> fed_by_device, fed_by_caller, first, second;
    WCUDA_TRY(start(1));
    WCUDA_TRY(session_->decode(kCheckedSteps, &fed_by_device));
    WCUDA_TRY(start(1));
    WCUDA_TRY(session_->decode_checked(kCheckedSteps, &fed_by_caller));
    WCUDA_TRY(expect_equal(fed_by_device, fed_by_caller));
    WCUDA_TRY(start(sequence_count_));
    WCUDA_TRY(session_->decode(kCheckedSteps, &first));
    WCUDA_TRY(start(sequence_count_));
    WCUDA_TRY(session_->decode(kCheckedSteps, &second));
    return expect_equal(first, second);
  }

  Status start(uint32_t count) {
    WCUDA_TRY(session_->begin(count));
    return session_->prefill(kCheckedPrompt);
  }

  Status expect_equal(const std::vector<int32_t>& a, const std::vector<int32_t>& b) const {
    WCUDA_CHECK(a.size() == b.size());
    for (size_t i = 0; i < a.size(); ++i)
      if (a[i] != b[i])
        return Status::error(WCUDA_INTERNAL, "%stoken %zu of two equal runs is %d and %d",
                             name_.c_str(), i, a[i], b[i]);
    return {};
  }

  Status run_decode() {
    for (const uint32_t depth : options_.depths) {
      const uint32_t length = std::max(depth, 1u);
      WCUDA_TRY(session_->begin(1));
      WCUDA_TRY(session_->prefill(length));
      WCUDA_ASSIGN(std::vector<double> values,
                   rates(
                       options_.repeat, options_.tokens, [&] { return session_->rewind(length); },
                       [&] { return session_->decode(options_.tokens, nullptr); }));
      WCUDA_ASSIGN(const double seconds, limit(1, 1, length + options_.tokens / 2.0));
      WCUDA_TRY(report_.add({name_ + "decode at " + std::to_string(depth), "tok/s",
                             std::move(values), rate(1, seconds)}));
    }
    return {};
  }

  Status run_streams() {
    for (const uint32_t count : options_.streams) {
      WCUDA_TRY(session_->begin(count));
      WCUDA_TRY(session_->prefill(kStreamPrompt));
      WCUDA_ASSIGN(std::vector<double> values,
                   rates(
                       options_.repeat, count * kStreamTokens,
                       [&] { return session_->rewind(kStreamPrompt); },
                       [&] { return session_->decode(kStreamTokens, nullptr); }));
      WCUDA_ASSIGN(const double seconds, limit(count, 1, kStreamPrompt + kStreamTokens / 2.0));
      WCUDA_TRY(report_.add({name_ + "streams " + std::to_string(count), "tok/s", std::move(values),
                             rate(count, seconds)}));
    }
    return {};
  }

  Status run_prefill() {
    for (const uint32_t prompt : options_.prompts) {
      // The second step of a class captures a graph, of each of the two tickets.
      for (int i = 0; i < 3; ++i) {
        WCUDA_TRY(session_->begin(1));
        WCUDA_TRY(session_->prefill(prompt));
      }
      WCUDA_ASSIGN(std::vector<double> values,
                   rates(
                       options_.repeat, prompt, [&] { return session_->begin(1); },
                       [&] { return session_->prefill(prompt); }));
      double seconds = 0.0;
      for (uint32_t done = 0; done < prompt; done += engine_.max_batch_tokens) {
        WCUDA_ASSIGN(const double step,
                     limit(1, std::min(prompt - done, engine_.max_batch_tokens), done));
        seconds += step;
      }
      WCUDA_TRY(report_.add({name_ + "prefill " + std::to_string(prompt), "tok/s",
                             std::move(values), rate(prompt, seconds)}));
    }
    return {};
  }

  uint32_t host_rows() const { return device_.backend == WCUDA_BACKEND_CUDA ? 256 : 4; }

  Status run_host() {
    for (const uint32_t rows : {1u, host_rows()}) {
      WCUDA_TRY(session_->begin(rows));
      WCUDA_TRY(session_->prefill(kStreamPrompt));
      std::vector<double> medians;
      for (uint32_t i = 0; i <= options_.repeat; ++i) {
        std::vector<double> seconds;
        WCUDA_TRY(session_->rewind(kStreamPrompt));
        WCUDA_TRY(session_->measure_host(kHostSteps, &seconds));
        std::sort(seconds.begin(), seconds.end());
        if (i > 0) medians.push_back(seconds[seconds.size() / 2] * 1e6);
      }
      WCUDA_TRY(report_.add(
          {name_ + "submit + wait, rows " + std::to_string(rows), "us", std::move(medians), 0}));
      // The difference of these is what two steps in flight hide.
      WCUDA_ASSIGN(const double least, limit(rows, 1, kStreamPrompt + kHostSteps / 2.0));
      for (const size_t depth : {size_t{1}, size_t{2}}) {
        WCUDA_ASSIGN(
            std::vector<double> values,
            rates(
                options_.repeat, kHostSteps, [&] { return session_->rewind(kStreamPrompt); },
                [&] { return session_->decode(kHostSteps, nullptr, depth); }));
        for (double& value : values) value = 1e6 / value;
        WCUDA_TRY(report_.add({name_ + "step of " + std::to_string(rows) + " rows, " +
                                   std::to_string(depth) + " in flight",
                               "us", std::move(values), least * 1e6}));
      }
    }
    return {};
  }

  // Inter-token times of sequences that decode while prompts arrive, and these prompts' rate.
  Status run_mixed() {
    std::vector<double> medians, tails, prompts;
    for (uint32_t i = 0; i <= options_.repeat; ++i) {
      std::vector<double> seconds;
      WCUDA_TRY(session_->begin(kMixedStreams));
      WCUDA_TRY(session_->prefill(kMixedDepth));
      const Clock::time_point begin = Clock::now();
      WCUDA_TRY(session_->mix(kMixedPrompts, kMixedPrompt, kMixedChunk, &seconds));
      const double total = seconds_since(begin);
      std::sort(seconds.begin(), seconds.end());
      if (i == 0) continue;
      medians.push_back(seconds[seconds.size() / 2] * 1e6);
      tails.push_back(seconds[seconds.size() * 99 / 100] * 1e6);
      prompts.push_back(kMixedPrompts * kMixedPrompt / total);
    }
    // A step of as many tokens, and the keys and values that the sequences read besides.
    WCUDA_ASSIGN(double seconds, limit(1, kMixedStreams + kMixedChunk, kMixedPrompt / 2.0));
    WCUDA_ASSIGN(const double deep, limit(kMixedStreams, 1, kMixedDepth));
    WCUDA_ASSIGN(const double flat, limit(kMixedStreams, 1, 0));
    seconds += deep - flat;
    const std::string work = name_ + "mixed ";
    WCUDA_TRY(report_.add({work + "inter-token, p50", "us", std::move(medians), seconds * 1e6}));
    WCUDA_TRY(report_.add({work + "inter-token, p99", "us", std::move(tails), seconds * 1e6}));
    return report_.add({work + "prompts", "tok/s", std::move(prompts), rate(kMixedChunk, seconds)});
  }

  Status run_shared() {
    const uint32_t length = kSharedPrefix + kStreamPrompt;
    WCUDA_TRY(session_->begin(1));
    WCUDA_TRY(session_->prefill(kSharedPrefix));
    WCUDA_TRY(session_->fork(kSharedStreams));
    WCUDA_TRY(session_->prefill(kStreamPrompt));
    WCUDA_ASSIGN(std::vector<double> values,
                 rates(
                     options_.repeat, kSharedStreams * kStreamTokens,
                     [&] { return session_->rewind(length); },
                     [&] { return session_->decode(kStreamTokens, nullptr); }));
    if (spec_.has("profile"))
      WCUDA_TRY(note_profile(std::to_string(kSharedStreams) + " streams, prefix " +
                             std::to_string(kSharedPrefix)));
    // Each sequence's own positions, and the prefix once.
    WCUDA_ASSIGN(double seconds, limit(kSharedStreams, 1, kStreamPrompt + kStreamTokens / 2.0));
    WCUDA_ASSIGN(const double deep, limit(1, 1, kSharedPrefix));
    WCUDA_ASSIGN(const double flat, limit(1, 1, 0));
    seconds += deep - flat;
    return report_.add({name_ + "streams " + std::to_string(kSharedStreams) + ", prefix " +
                            std::to_string(kSharedPrefix),
                        "tok/s", std::move(values), rate(kSharedStreams, seconds)});
  }

  Status run_profile() {
    for (const uint32_t count : options_.streams) {
      WCUDA_TRY(session_->begin(count));
      WCUDA_TRY(session_->prefill(kStreamPrompt));
      WCUDA_TRY(note_profile(std::to_string(count) + " streams"));
    }
    for (const uint32_t prompt : options_.prompts) {
      if (prompt > engine_.max_batch_tokens) continue;  // not one step
      std::vector<wcuda_step_node> nodes;
      WCUDA_TRY(session_->profile_prompt(prompt, &nodes));
      note_nodes("a prompt of " + std::to_string(prompt), nodes);
    }
    return {};
  }

  // The nodes of a step of the sequences as they are.
  Status note_profile(const std::string& step) {
    std::vector<wcuda_step_node> nodes;
    WCUDA_TRY(session_->profile(&nodes));
    note_nodes(step, nodes);
    return {};
  }

  void note_nodes(const std::string& step, const std::vector<wcuda_step_node>& nodes) {
    report_.note(name_ + "profile of a step of " + step);
    std::vector<wcuda_step_node> sums;  // of the layers
    std::vector<uint32_t> counts;
    for (const wcuda_step_node& node : nodes) {
      size_t i = 0;
      while (i < sums.size() && (std::strcmp(sums[i].operation, node.operation) != 0 ||
                                 std::strcmp(sums[i].kernel, node.kernel) != 0))
        ++i;
      if (i == sums.size()) {
        sums.push_back(node);
        counts.push_back(1);
        continue;
      }
      ++counts[i];
      sums[i].bytes += node.bytes;
      sums[i].limit_ns += node.limit_ns;
      sums[i].measured_ns += node.measured_ns;
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      char text[160];
      std::snprintf(text, sizeof text, "  %-18s %-24s x %3u %9.1f us, limit %9.1f us, %6.0f GB/s",
                    sums[i].operation, sums[i].kernel, counts[i], sums[i].measured_ns * 1e-3,
                    sums[i].limit_ns * 1e-3,
                    static_cast<double>(sums[i].bytes) / std::max(sums[i].measured_ns, 1.0));
      report_.note(text);
    }
  }

  const Device& device_;
  const Spec spec_;
  const Options& options_;
  Report& report_;
  SyntheticModel model_;
  wcuda_engine_options engine_ = WCUDA_ENGINE_OPTIONS_INIT;
  std::string name_;
  uint32_t sequence_count_ = 1;
  Model loaded_;
  std::unique_ptr<Session> session_;
};

Status parse_option(const std::string& name, const std::string& value, Options* options) {
  const auto number = [&] {
    return static_cast<uint32_t>(std::strtoul(value.c_str(), nullptr, 10));
  };
  const auto one_of = [&](std::vector<std::string> names, int32_t* target) -> Status {
    for (size_t i = 0; i < names.size(); ++i)
      if (names[i] == value) {
        *target = static_cast<int32_t>(i);
        return {};
      }
    return Status::error(WCUDA_INVALID_ARGUMENT, "%s: '%s'", name.c_str(), value.c_str());
  };
  if (name == "--backend") return one_of({"auto", "cuda", "host"}, &options->backend);
  if (name == "--kv")
    return one_of({kKvNames[0], kKvNames[1], kKvNames[2], kKvNames[3]}, &options->kv_type);
  if (name == "--batch-invariant") return one_of({"off", "on"}, &options->batch_invariant);
  if (name == "--threads")
    options->threads = number();
  else if (name == "--repeat")
    options->repeat = std::max(number(), 1u);
  else if (name == "--tokens")
    options->tokens = std::max(number(), 1u);
  else if (name == "--batch")
    options->batch = number();
  else if (name == "--depths")
    options->depths = numbers(value);
  else if (name == "--streams")
    options->streams = numbers(value);
  else if (name == "--prompts")
    options->prompts = numbers(value);
  else if (name == "--folder")
    options->folder = value;
  else if (name == "--json")
    options->json = value;
  else
    return Status::error(WCUDA_INVALID_ARGUMENT, "no option '%s'", name.c_str());
  return {};
}

Result<Spec> parse_spec(const std::string& text, const Options& options) {
  const std::vector<std::string> parts = split(text, ':');
  if (parts.size() != 3 && parts.size() != 4)
    return Status::error(WCUDA_INVALID_ARGUMENT, "'%s' is not SHAPE:MIX:WORK,WORK", text.c_str());
  Spec spec{parts[0], parts[1], split(parts[2], ','), options};
  for (const std::string& work : spec.works) {
    bool known = false;
    for (const char* name :
         {"load", "decode", "streams", "prefill", "first", "host", "mixed", "shared", "profile"})
      known = known || work == name;
    if (!known) return Status::error(WCUDA_INVALID_ARGUMENT, "no work '%s'", work.c_str());
  }
  if (parts.size() == 4)
    for (const std::string& option : split(parts[3], ';')) {
      const size_t equals = std::min(option.find('='), option.size() - 1);
      WCUDA_TRY(
          parse_option("--" + option.substr(0, equals), option.substr(equals + 1), &spec.options));
    }
  return spec;
}

void fill_defaults(bool is_cuda, Options* o) {
  const auto fill = [&](std::vector<uint32_t>* list, std::vector<uint32_t> cuda,
                        std::vector<uint32_t> host) {
    if (list->empty()) *list = is_cuda ? std::move(cuda) : std::move(host);
  };
  fill(&o->depths, {0, 4096, 16384}, {0, 512});
  fill(&o->streams, {1, 4, 8, 16, 32, 64, 128, 256, 512, 1024}, {1, 4});
  fill(&o->prompts, {16, 64, 256, 512, 2048, 8192}, {128});
  if (o->batch == 0) o->batch = is_cuda ? 8192 : 512;
  if (o->specs.empty())
    o->specs = {is_cuda ? "8b:q4_k_m:load,first,decode,streams,prefill,host,mixed,shared"
                        : "135m:q4_1:load,first,decode,streams,prefill"};
}

Status run(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.compare(0, 2, "--") != 0) {
      options.specs.push_back(argument);
      continue;
    }
    if (i + 1 == argc) return Status::error(WCUDA_INVALID_ARGUMENT, "%s: no value", argv[i]);
    WCUDA_TRY(parse_option(argument, argv[++i], &options));
  }
  WCUDA_ASSIGN(const Device device, Device::open(options.backend, options.threads));
  options.backend = device.backend;
  fill_defaults(device.backend == WCUDA_BACKEND_CUDA, &options);
  std::vector<Spec> specs;
  for (const std::string& text : options.specs) {
    WCUDA_ASSIGN(Spec spec, parse_spec(text, options));
    specs.push_back(std::move(spec));
  }
  Report report(device.backend, device.caps, options.json);
  Status first_failure;
  for (const Spec& spec : specs) {
    const Status status = ModelBench(device, spec, &report).run();
    if (status.ok()) continue;
    report.note(spec.shape + " " + spec.mix + ": " + status.message());
    if (first_failure.ok()) first_failure = status;
  }
  return first_failure;
}

// --write SHAPE:MIX FILE
Status write_model(const std::string& name, const char* path) {
  const std::vector<std::string> parts = split(name, ':');
  if (parts.size() != 2)
    return Status::error(WCUDA_INVALID_ARGUMENT, "%s: SHAPE:MIX", name.c_str());
  WCUDA_ASSIGN(const SyntheticModel model, SyntheticModel::make(parts[0], parts[1], true));
  return model.write(path);
}

// --first-token FILE BACKEND THREADS FD: the process that time_first_token starts.
Status write_first_token(char** arguments) {
  WCUDA_ASSIGN(const Device device,
               Device::open(std::atoi(arguments[1]),
                            static_cast<uint32_t>(std::strtoul(arguments[2], nullptr, 10))));
  double seconds = 0.0;
  WCUDA_ASSIGN(const Model model, load(device, file_source(arguments[0]), &seconds));
  wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
  options.max_sequence_tokens = 512;
  WCUDA_ASSIGN(const std::unique_ptr<Session> session, Session::open(device, model.get(), options));
  WCUDA_TRY(session->begin(1));
  WCUDA_TRY(session->prefill(1));
  const int32_t token = 0;
  if (::write(std::atoi(arguments[3]), &token, sizeof token) == sizeof token) return {};
  return Status::error(WCUDA_IO, "cannot report the first token");
}

// Bytes of the matrices that a decoded token is multiplied with, and elements of those that each
// token of a prompt is: all but the output's.
Status add_matrices(const char* path, uint64_t* bytes, uint64_t* elements) {
  wcuda_error error{};
  Gguf gguf;
  const wcuda_source source = file_source(path);
  WCUDA_TRY(to_status(wcuda_gguf_open(&source, gguf.out(), &error), error));
  uint64_t count = 0;
  WCUDA_TRY(to_status(wcuda_gguf_tensor_list(gguf.get(), 0, nullptr, 0, &count, &error), error));
  std::vector<wcuda_gguf_tensor> tensors(count, WCUDA_GGUF_TENSOR_INIT);
  WCUDA_TRY(to_status(wcuda_gguf_tensor_list(gguf.get(), 0, tensors.data(), count, &count, &error),
                      error));
  const auto is = [](const wcuda_gguf_tensor& tensor, const char* name) {
    return std::string(tensor.name.data, tensor.name.bytes) == name;
  };
  const bool has_output = std::any_of(tensors.begin(), tensors.end(), [&](const auto& tensor) {
    return is(tensor, "output.weight");
  });
  for (const wcuda_gguf_tensor& tensor : tensors) {
    const bool is_embedding = is(tensor, "token_embd.weight");
    if (tensor.dimension_count < 2 || (has_output && is_embedding)) continue;
    *bytes += tensor.bytes;
    if (!is_embedding && !is(tensor, "output.weight")) *elements += tensor.element_count;
  }
  return {};
}

// --serve FILE THREADS
Status serve(const char* path, const char* threads) {
  uint64_t bytes = 0, elements = 0;
  WCUDA_TRY(add_matrices(path, &bytes, &elements));
  WCUDA_ASSIGN(
      const Device device,
      Device::open(WCUDA_BACKEND_HOST, static_cast<uint32_t>(std::strtoul(threads, nullptr, 10))));
  double seconds = 0.0;
  WCUDA_ASSIGN(const Model model, load(device, file_source(path), &seconds));
  wcuda_engine_options options = WCUDA_ENGINE_OPTIONS_INIT;
  options.max_sequences = 1;
  options.max_batch_tokens = 512;
  options.max_sequence_tokens = 2048;
  WCUDA_ASSIGN(const std::unique_ptr<Session> session, Session::open(device, model.get(), options));
  std::printf("%s %llu bytes %llu elements %llu page_bytes\n", ops::host::best_kernels().name,
              static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(elements),
              static_cast<unsigned long long>(session->page_bytes()));
  std::fflush(stdout);
  char work[16];
  uint32_t count = 0, length = 0;
  while (std::scanf("%15s %u", work, &count) == 2) {
    const bool is_prefill = std::strcmp(work, "prefill") == 0;
    if (is_prefill)
      WCUDA_TRY(session->begin(1));
    else
      WCUDA_TRY(session->rewind(length));
    const Clock::time_point begin = Clock::now();
    WCUDA_TRY(is_prefill ? session->prefill(count) : session->decode(count, nullptr));
    std::printf("%.6f\n", seconds_since(begin));
    std::fflush(stdout);
    if (is_prefill) length = count;
  }
  return {};
}

Status dispatch(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "--serve") == 0) return serve(argv[2], argv[3]);
  if (argc == 4 && std::strcmp(argv[1], "--write") == 0) return write_model(argv[2], argv[3]);
  if (argc == 6 && std::strcmp(argv[1], "--first-token") == 0) return write_first_token(argv + 2);
  return run(argc, argv);
}

}  // namespace
}  // namespace wcuda::bench

int main(int argc, char** argv) {
  wcuda::limit_isa(std::getenv("WCUDA_MAX_ISA"));
  const wcuda::Status status = wcuda::bench::dispatch(argc, argv);
  if (!status.ok()) std::fprintf(stderr, "e2e_bench: %s\n", status.message());
  return status.ok() ? 0 : 1;
}
