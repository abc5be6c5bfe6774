// Gathers the health report.
#include "core/health/report.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>

#include "core/backend/nvml.h"
#include "core/base/text.h"

namespace wcuda::health {
namespace {

constexpr int kAttempts = 3;

void set_message(wcuda_health& health, const char* message) {
  copy_text(message, health.message, sizeof(health.message));
}

// The most severe finding determines the state and the message.
void judge(wcuda_health& health, uint64_t pooled_bytes, const Status& fault, const Status& asked,
           const Status& residency) {
  char text[sizeof(health.message)];
  health.state = WCUDA_HEALTH_DEGRADED;
  if (!fault.ok()) {
    health.state = WCUDA_HEALTH_LOST;
    health.sticky_code = fault.native_code();
    set_message(health, fault.message());
  } else if (!asked.ok()) {
    set_message(health, asked.message());
  } else if (health.pool_used_bytes < pooled_bytes) {
    std::snprintf(text, sizeof(text),
                  "the ledger holds %" PRIu64 " bytes, the device's pool %" PRIu64, pooled_bytes,
                  health.pool_used_bytes);
    set_message(health, text);
  } else if (!residency.ok()) {
    set_message(health, residency.message());
  } else if (health.ecc_error_count > 0) {
    std::snprintf(text, sizeof(text), "%" PRId64 " uncorrected memory errors",
                  health.ecc_error_count);
    set_message(health, text);
  } else if (health.deferred_error_count != 0) {
    std::snprintf(text, sizeof(text), "%" PRIu64 " failures while freeing",
                  health.deferred_error_count);
    set_message(health, text);
  } else {
    health.state = WCUDA_HEALTH_OK;
  }
}

void read_ledger(const vram::Memory& memory, wcuda_health& health) {
  const vram::LedgerSum device = memory.ledger().sum(WCUDA_PURPOSE_ANY);
  health.ledger_bytes = device.current_bytes;
  health.peak_bytes = device.peak_bytes;
  health.allocation_count = device.allocation_count;
  health.lost_bytes = device.lost_bytes;
  health.lost_count = device.lost_count;
}

// Bytes of the ledger that the device's pool holds: the driver keeps loaded modules elsewhere.
uint64_t pooled_bytes(const vram::Memory& memory, const wcuda_health& health) {
  const uint64_t modules = memory.ledger().sum(WCUDA_PURPOSE_MODULE).current_bytes;
  return health.ledger_bytes - std::min(health.ledger_bytes, modules);
}

// The driver's figures; returns its first failure.
Status ask(vram::Memory& memory, wcuda_health& health, uint64_t& pooled, Status& residency) {
  // Memory that another thread frees meanwhile leaves the pool before the ledger: read both again.
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    read_ledger(memory, health);
    pooled = pooled_bytes(memory, health);
    WCUDA_ASSIGN(const MemoryInfo info, memory.backend().memory_info());
    health.device_free_bytes = info.free_bytes;
    health.device_total_bytes = info.total_bytes;
    health.pool_used_bytes = info.used_bytes;
    health.pool_reserved_bytes = info.reserved_bytes;
    if (health.pool_used_bytes >= pooled) break;
  }
  WCUDA_ASSIGN(const vram::Residency found, memory.check_residency());
  health.nonresident_count = found.nonresident_count;
  residency = found.status();
  return {};
}

}  // namespace

wcuda_health report(vram::Memory& memory) {
  const auto start = std::chrono::steady_clock::now();
  const wcuda_device_caps& caps = memory.backend().caps();
  wcuda_health health = WCUDA_HEALTH_INIT;
  read_ledger(memory, health);
  health.staging_bytes = memory.ledger().sum(WCUDA_PURPOSE_STAGING).current_bytes;
  health.device_total_bytes = caps.total_memory;
  health.deferred_error_count = memory.deferred_error_count();
  const DeviceHealth device_health =
      nvml_health(caps.backend == WCUDA_BACKEND_CUDA ? caps.pci_bus_id : "");
  health.temperature_celsius = device_health.temperature_celsius;
  health.ecc_error_count = device_health.ecc_error_count;

  Status fault = memory.backend().fault();
  Status residency;
  uint64_t pooled = 0;
  const Status asked = fault.ok() ? ask(memory, health, pooled, residency) : Status();
  if (fault.ok()) fault = memory.backend().fault();  // the queries above may have found one
  judge(health, pooled, fault, asked, residency);
  const auto duration = std::chrono::steady_clock::now() - start;
  health.duration_ns =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
  return health;
}

}  // namespace wcuda::health
