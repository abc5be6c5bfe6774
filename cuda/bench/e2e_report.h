// What end-to-end benches print and save: each figure next to the device's limit and the peer's
// figure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "worker_cuda.h"

namespace wcuda::bench {

struct ReportRow {
  std::string work;  // "8b q4_k_m decode at 4096"
  std::string unit;  // "tok/s", "GB/s", "MB", "s", "us"
  std::vector<double> values;
  double limit = 0.0;  // 0: not known
};

// The peer's figure for a row, 0 where there is none: llama.cpp 0.5.0 on one H200, driver 580,
// 2026-11-21, the best of its builds.
double peer_figure(const std::string& work);

class Report {
 public:
  // `path` is where the JSON goes; "" for none.
  Report(int32_t backend, const wcuda_device_caps& caps, std::string path);

  // Prints the row and rewrites the JSON, so that an interrupted run leaves what it measured.
  Status add(const ReportRow& row);
  // A line of the text alone.
  void note(const std::string& text) const;

 private:
  // The JSON: {"device", "backend", "version", "rows": [{work, value, unit, limit, share, peer,
  // ratio, spread}]}: value is the median; share, of the limit; ratio, to the peer, above 1 where
  // ours is better; spread, (largest - smallest) / median. What is not known is null.
  Status write() const;

  std::string device_;
  bool is_cuda_;
  bool has_peer_;
  std::string path_;
  std::vector<ReportRow> rows_;
};

}  // namespace wcuda::bench
