// Device memory of a test, freed with it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

namespace wcuda::testing {

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    status_ = cudaMalloc(reinterpret_cast<void**>(&data_), (count + 1) * sizeof(T));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { set(values); }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  // Sets the first values; there are no more of them than the array has.
  void set(const std::vector<T>& values) {
    if (status_ == cudaSuccess)
      status_ = cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
  }
  // Sets all bytes.
  void fill(int byte) {
    if (status_ == cudaSuccess) status_ = cudaMemset(data_, byte, count_ * sizeof(T));
  }
  // The values, after all work on the device; empty when any call failed.
  std::vector<T> read() {
    std::vector<T> values(count_);
    if (status_ == cudaSuccess)
      status_ = cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost);
    return status_ == cudaSuccess ? values : std::vector<T>();
  }
  cudaError_t status() const { return status_; }

 private:
  T* data_ = nullptr;
  size_t count_;
  cudaError_t status_ = cudaSuccess;
};

}  // namespace wcuda::testing
