// Temperature and memory errors from NVML, the driver's management library.
#pragma once

#include <cstdint>

namespace wcuda {

struct DeviceHealth {
  int32_t temperature_celsius = -1;  // -1: not known
  int64_t ecc_error_count = -1;      // uncorrected since the driver was loaded; -1: not known
};

// `pci_bus_id`: "0000:17:00.0"; "": nothing is known. Opens NVML once a process, which takes some
// ten milliseconds; after that microseconds. Its absence is no failure: everything is "not known"
// then. Any thread.
DeviceHealth nvml_health(const char* pci_bus_id);

}  // namespace wcuda
