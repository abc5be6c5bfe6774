// Submissions on one stream of a context. On HOST, where a kernel runs within the call that
// launches it, they wait in a queue for the first call that may take time.
#include "api/zctl/device.h"

#include <algorithm>
#include <deque>
#include <map>

#include "api/base/stream.h"
#include "api/compute/kernel.h"
#include "api/compute/registry.h"
#include "core/backend/owned.h"

namespace wcuda::api {
namespace {

using compute::Registry;
using compute::RegistryEntry;
using zctl::Clock;
using zctl::DeviceBuffer;
using zctl::DeviceModule;
using zctl::DevicePoint;

constexpr size_t kUnfinishedMax =
    256;  // a driver's queue holds more, and a call never waits for it

struct BufferOnDevice final : DeviceBuffer {
  vram::Buffer memory;
};

struct LoadedModule final : DeviceModule {
  std::shared_ptr<ModuleObject> object;
  std::map<std::string, std::shared_ptr<KernelObject>, std::less<>> kernels;  // that were submitted
};

struct Point final : DevicePoint {
  OwnedEvent event;                  // on CUDA
  std::shared_ptr<const void> kept;  // on CUDA: what the work uses, until it is done
  std::function<Status()> work;      // on HOST, until it has run
  bool is_done = false;
  Status status;
  std::shared_ptr<Point> behind;  // a mark: what was last queued before it
};

// What a launch needs.
struct Launch {
  std::shared_ptr<const RegistryEntry> entry;  // null: of a module
  std::shared_ptr<KernelObject> kernel;        // of a module
  LaunchDims dims;
  std::vector<uint8_t> values;  // of the arguments without a buffer
  std::vector<std::shared_ptr<DeviceBuffer>> buffers;
  Arguments arguments;
};

vram::Buffer& memory_of(DeviceBuffer& buffer) {
  return static_cast<BufferOnDevice&>(buffer).memory;
}

class RegistryDevice final : public zctl::Device {
 public:
  explicit RegistryDevice(std::shared_ptr<Registry> registry)
      : registry_(std::move(registry)), memory_(*registry_->memory()) {}

  // Buffers are freed behind no stream: their work has ended.
  ~RegistryDevice() override {
    collect();
    if (!unfinished_.empty() && !backend().is_host()) (void)backend().synchronize(stream_);
  }

  void collect() override {
    while (!unfinished_.empty() && is_done(unfinished_.front().get())) unfinished_.pop_front();
  }

  zctl::DeviceInfo info() const override {
    const wcuda_device_caps& caps = backend().caps();
    zctl::DeviceInfo info;
    info.backend = backend().is_registered() ? "" : backend().is_host() ? "host" : "cuda";
    info.id = std::to_string(caps.ordinal);
    info.name = caps.name;
    info.memory_bytes = caps.total_memory;
    info.compute_units = static_cast<uint32_t>(caps.multiprocessor_count);
    info.flags = (caps.supports_fp16 ? 1 : 0) | (caps.supports_tensor_cores ? 2 : 0) |
                 (caps.unified_memory ? 4 : 0);
    return info;
  }

  Result<std::shared_ptr<DeviceBuffer>> allocate(uint64_t bytes) override {
    auto buffer = std::make_shared<BufferOnDevice>();
    WCUDA_ASSIGN(buffer->memory,
                 memory_.allocate_zeroed(bytes, WCUDA_PURPOSE_SCRATCH, "zctl buffer"));
    return std::shared_ptr<DeviceBuffer>(std::move(buffer));
  }

  Status write(DeviceBuffer& target, uint64_t offset, zctl::Bytes source,
               Clock::time_point deadline) override {
    WCUDA_TRY(wait_for_all(deadline));
    return memory_.copy_to_device(memory_of(target).data() + offset, source.data, source.bytes);
  }

  Status read(DeviceBuffer& source, uint64_t offset, uint8_t* target, uint64_t bytes,
              Clock::time_point deadline) override {
    WCUDA_TRY(wait_for_all(deadline));
    return backend().copy_to_host(target, memory_of(source).data() + offset, bytes);
  }

  Status copy(std::shared_ptr<DeviceBuffer> target, std::shared_ptr<DeviceBuffer> source,
              uint64_t bytes) override {
    WCUDA_TRY(open());
    const auto both =
        std::make_shared<std::pair<std::shared_ptr<DeviceBuffer>, std::shared_ptr<DeviceBuffer>>>(
            target, source);
    return queue(both,
                 [this, both, bytes] {
                   return backend().copy_on_device(memory_of(*both->first).data(),
                                                   memory_of(*both->second).data(), bytes, stream_);
                 })
        .status();
  }

  Result<std::shared_ptr<DevicePoint>> submit(const zctl::Submit& what) override {
    WCUDA_TRY(open());
    auto launch = std::make_shared<Launch>();
    WCUDA_TRY(what.kernel ? read_registered(what, launch.get()) : read_foreign(what, launch.get()));
    // A kernel that checks its ids waits for the check.
    collect();
    if (launch->entry && launch->entry->builtin && !backend().is_host() &&
        launch->entry->builtin->op == kernels::CatalogueOp::kEmbedding && !unfinished_.empty())
      return Status::error(WCUDA_BUSY, "its ids are checked first, and a submission is at work");
    return queue(launch, [this, launch] { return run(launch.get()); });
  }

  Result<std::shared_ptr<DevicePoint>> mark() override {
    WCUDA_TRY(open());
    auto mark = std::make_shared<Point>();
    if (unfinished_.empty())
      mark->is_done = true;
    else
      mark->behind = unfinished_.back();
    return std::shared_ptr<DevicePoint>(std::move(mark));
  }

  Status wait(DevicePoint& point, Clock::time_point deadline) override {
    auto& wanted = static_cast<Point&>(point);
    if (wanted.is_done) return Status(wanted.status);
    if (wanted.behind) {
      // How a submission ended is in its own record.
      Status passed = wait(*wanted.behind, deadline);
      return passed.code() == WCUDA_TIMEOUT ? std::move(passed) : backend().fault();
    }
    if (backend().is_host()) {
      while (!wanted.is_done && Clock::now() < deadline) run_next();
      // What cannot be stopped is late nevertheless.
      if (wanted.is_done && Clock::now() < deadline) return Status(wanted.status);
    } else {
      WCUDA_ASSIGN(wanted.is_done, wait_until(backend(), wanted.event, deadline));
      if (wanted.is_done) {
        wanted.kept.reset();
        collect();
        return {};
      }
    }
    return Status::error(WCUDA_TIMEOUT, "the deadline has passed");
  }

  Result<std::shared_ptr<DeviceModule>> load(zctl::Bytes code) override {
    auto module = std::make_shared<LoadedModule>();
    WCUDA_ASSIGN(module->object, load_module(registry_->memory(), code.data, code.bytes, {}));
    return std::shared_ptr<DeviceModule>(std::move(module));
  }

 private:
  Backend& backend() const { return memory_.backend(); }

  Status open() {
    WCUDA_TRY(backend().fault());
    if (is_open_) return {};
    WCUDA_TRY(stream_.take(backend(), backend().stream_create(0)));
    is_open_ = true;
    return {};
  }

  template <class Work>
  Result<std::shared_ptr<DevicePoint>> queue(std::shared_ptr<const void> kept, Work&& work) {
    collect();
    if (unfinished_.size() >= kUnfinishedMax)
      return Status::error(WCUDA_BUSY, "%zu submissions are at work", unfinished_.size());
    auto point = std::make_shared<Point>();
    if (backend().is_host()) {
      point->work = std::forward<Work>(work);
    } else {
      WCUDA_TRY(point->event.take(backend(), backend().event_create()));
      Status queued = work();
      if (queued.code() == WCUDA_OUT_OF_RANGE) {  // ids, which no argument check sees
        point->is_done = true;
        point->status = std::move(queued);
        return std::shared_ptr<DevicePoint>(std::move(point));
      }
      if (queued.ok()) queued = backend().event_record(point->event, stream_);
      if (!queued.ok()) {
        // No event says when what was queued has ended.
        (void)backend().synchronize(stream_);
        return queued;
      }
      point->kept = std::move(kept);
    }
    unfinished_.push_back(point);
    return std::shared_ptr<DevicePoint>(std::move(point));
  }

  bool is_done(Point* point) const {
    if (!point->is_done && !backend().is_host()) {
      const auto done = backend().event_done(point->event);
      if (!done.ok()) return true;  // the device is lost, as wait says
      point->is_done = *done;
    }
    if (point->is_done) point->kept.reset();
    return point->is_done;
  }

  // On HOST.
  void run_next() {
    const std::shared_ptr<Point> next = unfinished_.front();
    unfinished_.pop_front();
    // If the work throws, as where no memory is left, this is how it ended.
    next->is_done = true;
    next->status = Status::error(WCUDA_INTERNAL, "the run was not completed");
    const auto work = std::move(next->work);
    next->work = nullptr;
    next->status = work();
  }

  Status wait_for_all(Clock::time_point deadline) {
    if (unfinished_.empty()) return {};
    Point mark;
    mark.behind = unfinished_.back();
    return wait(mark, deadline);
  }

  Status run(Launch* launch) {
    if (launch->entry) return queue_run(*launch->entry, memory_, &launch->arguments, stream_);
    return launch_read(*launch->kernel, &launch->arguments, {stream_, {0}},
                       [&](const Arguments&) -> Result<LaunchDims> { return launch->dims; });
  }

  Status read_registered(const zctl::Submit& what, Launch* launch) {
    launch->entry = std::static_pointer_cast<const RegistryEntry>(what.kernel->entry);
    const auto& parameters = launch->entry->descriptor.signature.parameters;
    if (what.arguments.size() != parameters.size())
      return Status::error(WCUDA_ARGUMENT_COUNT, "%zu arguments, the kernel takes %zu",
                           what.arguments.size(), parameters.size());
    add_values(what, launch);
    size_t at = 0;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const zctl::SubmitArgument& argument = what.arguments[i];
      const int32_t kind = parameters[i].kind;
      if ((kind == WCUDA_ARG_BUFFER) != (argument.buffer != nullptr))
        return invalid_argument("argument %zu: the parameter is %s", i, jit::kind_name(kind));
      const uint64_t bytes = jit::scalar_bytes(kind);
      if (bytes != 0 && bytes != argument.value.bytes)
        return invalid_argument("argument %zu: %llu bytes, the parameter has %llu", i,
                                static_cast<unsigned long long>(argument.value.bytes),
                                static_cast<unsigned long long>(bytes));
      add(argument, kind, launch, &at);
    }
    launch->arguments.complete();
    if (!launch->entry->builtin) WCUDA_TRY(check_apart(what, parameters));
    return check_run(*launch->entry, launch->arguments);
  }

  // What a kernel of a caller writes is no other buffer of its.
  static Status check_apart(const zctl::Submit& what,
                            const std::vector<jit::Parameter>& parameters) {
    for (size_t i = 0; i < parameters.size(); ++i)
      for (size_t j = 0; j < parameters.size(); ++j)
        if (i != j && what.arguments[i].buffer &&
            what.arguments[i].buffer == what.arguments[j].buffer &&
            (parameters[i].access & WCUDA_ACCESS_WRITE) != 0)
          return invalid_argument("argument %zu: written, and argument %zu too", i, j);
    return {};
  }

  Status read_foreign(const zctl::Submit& what, Launch* launch) {
    auto& module = static_cast<LoadedModule&>(*what.module);
    const auto found = module.kernels.find(what.entry);
    if (found != module.kernels.end()) {
      launch->kernel = found->second;
    } else {
      if (what.entry.find('\0') != std::string_view::npos)
        return Status::error(WCUDA_NOT_FOUND, "a kernel whose name has a NUL");
      WCUDA_ASSIGN(launch->kernel, find_kernel(module.object, what.entry));
      module.kernels.emplace(what.entry, launch->kernel);
    }
    std::copy_n(what.grid, 3, launch->dims.grid);
    std::copy_n(what.block, 3, launch->dims.block);
    launch->dims.shared_bytes = what.shared_bytes;
    add_values(what, launch);
    size_t at = 0;
    for (const zctl::SubmitArgument& argument : what.arguments)
      add(argument, argument.buffer ? WCUDA_ARG_BUFFER : WCUDA_ARG_BYTES, launch, &at);
    launch->arguments.complete();
    WCUDA_TRY(jit::check_dims(launch->dims, launch->kernel->limits));
    return jit::check_parameters(launch->kernel->attributes.parameters, launch->arguments.shapes());
  }

  // Copies all values, each aligned for what reads it, to where they stay.
  static void add_values(const zctl::Submit& what, Launch* launch) {
    for (const zctl::SubmitArgument& argument : what.arguments) {
      if (argument.buffer) continue;
      launch->values.insert(launch->values.end(), argument.value.data,
                            argument.value.data + argument.value.bytes);
      launch->values.resize((launch->values.size() + 15) / 16 * 16);
    }
  }
  static void add(const zctl::SubmitArgument& argument, int32_t kind, Launch* launch, size_t* at) {
    if (argument.buffer) {
      launch->buffers.push_back(argument.buffer);
      launch->arguments.add({kind, argument.access, argument.buffer_bytes}, nullptr,
                            memory_of(*argument.buffer).data());
      return;
    }
    launch->arguments.add({kind, 0, argument.value.bytes}, launch->values.data() + *at, nullptr);
    *at += (argument.value.bytes + 15) / 16 * 16;
  }

  const std::shared_ptr<Registry> registry_;
  vram::Memory& memory_;
  OwnedStream stream_;
  bool is_open_ = false;
  std::deque<std::shared_ptr<Point>> unfinished_;
};

}  // namespace

std::unique_ptr<zctl::Device> registry_device(std::shared_ptr<Registry> registry) {
  return std::make_unique<RegistryDevice>(std::move(registry));
}

}  // namespace wcuda::api
