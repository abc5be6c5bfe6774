// Temperature and memory errors from NVML, the driver's management library.
#pragma once

#include "core/backend/backend.h"

namespace wcuda {

// Opens NVML once a process; takes some ten milliseconds the first time. Its absence is no failure:
// everything is "not known" then.
class NvmlDevice {
 public:
  // `pci_bus_id`: "0000:17:00.0".
  explicit NvmlDevice(const char* pci_bus_id);
  // Microseconds; any thread.
  DeviceHealth health() const;

 private:
  void* device_ = nullptr;  // nvmlDevice_t; null: not known
};

}  // namespace wcuda
