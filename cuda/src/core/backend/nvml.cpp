// NVML through the loader: the few functions used, declared here from its public manual.
#include "core/backend/nvml.h"

#include "core/base/dynlib.h"
#include "core/base/log.h"

namespace wcuda {
namespace {

constexpr int kSuccess = 0;
constexpr int kTemperatureGpu = 0;
constexpr int kUncorrected = 1;
constexpr int kVolatile = 0;

struct Nvml {
  int (*init)();
  int (*find_device)(const char* pci_bus_id, void** device);
  int (*temperature)(void* device, int sensor, unsigned* celsius);
  int (*ecc_errors)(void* device, int type, int counter, unsigned long long* count);
};

Result<Nvml> load() {
  WCUDA_ASSIGN(const DynamicLibrary library, DynamicLibrary::open(kNvmlLibrary));
  Nvml nvml{};
  WCUDA_TRY(library.find("nvmlInit_v2", &nvml.init));
  WCUDA_TRY(library.find("nvmlDeviceGetHandleByPciBusId_v2", &nvml.find_device));
  WCUDA_TRY(library.find("nvmlDeviceGetTemperature", &nvml.temperature));
  WCUDA_TRY(library.find("nvmlDeviceGetTotalEccErrors", &nvml.ecc_errors));
  const int status = nvml.init();
  if (status != kSuccess)
    return Status::native_error(WCUDA_NOT_AVAILABLE, status, "nvmlInit_v2 returned %d", status);
  return nvml;
}

// Null where there is no NVML. Stays open for the life of the process.
const Nvml* instance() {
  static const Result<Nvml> nvml = [] {
    Result<Nvml> loaded = load();
    if (!loaded.ok())
      log(WCUDA_LOG_INFO, "health", "no temperature and ECC: %s", loaded.status().message());
    return loaded;
  }();
  return nvml.ok() ? &*nvml : nullptr;
}

}  // namespace

DeviceHealth nvml_health(const char* pci_bus_id) {
  DeviceHealth health;
  if (pci_bus_id[0] == 0) return health;
  const Nvml* const nvml = instance();
  void* device = nullptr;
  if (!nvml || nvml->find_device(pci_bus_id, &device) != kSuccess) return health;
  unsigned celsius = 0;
  if (nvml->temperature(device, kTemperatureGpu, &celsius) == kSuccess)
    health.temperature_celsius = static_cast<int32_t>(celsius);
  unsigned long long count = 0;
  if (nvml->ecc_errors(device, kUncorrected, kVolatile, &count) == kSuccess)
    health.ecc_error_count = static_cast<int64_t>(count);
  return health;
}

}  // namespace wcuda
