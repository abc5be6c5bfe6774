// What other sections of the interface need of registries: kernels that were registered by
// descriptor.
#pragma once

#include <memory>
#include <string>

#include "api/compute/kernel.h"
#include "compute/catalogue/catalogue.h"
#include "compute/jit/descriptor.h"
#include "worker_cuda/compute.h"

namespace wcuda::api {

// A kernel of a registry: of the caller's, or of the catalogue. Nothing in it changes.
struct RegistryEntry {
  jit::Descriptor descriptor;
  std::shared_ptr<KernelObject> kernel;              // null: none here, or of the catalogue
  const compute::CatalogueEntry* builtin = nullptr;  // of the catalogue
  kernels::Dtype type = kernels::Dtype::kF32;        // of its elements

  bool runs_here() const { return builtin || (kernel && kernel->runs_here()); }
};

// The kernel of this name that a caller registered by descriptor, in the newest registry of the
// context that has one; null when none has.
std::shared_ptr<const RegistryEntry> find_described(vram::Memory& memory, const std::string& name);

// Launches such a kernel, which runs here, with dimensions of the caller's: its arguments are held
// against the descriptor.
Status launch_described(const RegistryEntry& entry, const wcuda_launch& launch,
                        const wcuda_argument* arguments, uint64_t count);

}  // namespace wcuda::api
