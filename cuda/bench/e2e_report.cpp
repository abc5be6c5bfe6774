// The peer's figures, the table and the JSON of end-to-end benches.
#include "bench/e2e_report.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace wcuda::bench {
namespace {

struct PeerFigure {
  const char* work;
  double value;
};
constexpr PeerFigure kPeerFigures[] = {
    {"8b q4_k_m decode at 0", 280},     {"8b q4_k_m decode at 4096", 260},
    {"8b q4_k_m decode at 16384", 223}, {"8b q8_0 decode at 0", 257},
    {"1b q4_k_m decode at 0", 918},     {"70b q4_k_m decode at 0", 45},
    {"8b f16 decode at 0", 209},        {"135m q4_1 decode at 0", 955},
    {"8b q4_k_m prefill 512", 12876},   {"8b q4_k_m prefill 2048", 13842},
    {"8b q4_k_m prefill 8192", 13083},  {"8b q8_0 prefill 512", 11231},
    {"8b q8_0 prefill 2048", 11429},    {"1b q4_k_m prefill 512", 39632},
    {"1b q4_k_m prefill 2048", 45615},  {"70b q4_k_m prefill 512", 1189},
    {"8b f16 prefill 512", 23465},      {"8b f16 prefill 2048", 24910},
    {"135m q4_1 prefill 512", 51670},   {"135m q4_1 prefill 2048", 52663},
    {"8b q4_k_m streams 1", 266},       {"8b q4_k_m streams 4", 708},
    {"8b q4_k_m streams 8", 960},       {"8b q4_k_m streams 16", 2064},
    {"8b q4_k_m streams 32", 3330},     {"8b q4_k_m streams 64", 4655},
    {"8b q4_k_m streams 128", 5446},    {"8b q4_k_m streams 256", 6336},
    {"8b q8_0 streams 1", 246},         {"8b q8_0 streams 4", 778},
    {"8b q8_0 streams 8", 1061},        {"8b q8_0 streams 16", 1980},
    {"8b q8_0 streams 32", 3297},       {"8b q8_0 streams 64", 4898},
    {"8b q8_0 streams 128", 6303},      {"8b q8_0 streams 256", 7392},
    {"1b q4_k_m streams 1", 818},       {"1b q4_k_m streams 4", 2335},
    {"1b q4_k_m streams 8", 3577},      {"1b q4_k_m streams 16", 6074},
    {"1b q4_k_m streams 32", 9575},     {"1b q4_k_m streams 64", 13071},
    {"1b q4_k_m streams 128", 14880},   {"1b q4_k_m streams 256", 18824},
    {"8b q4_k_m load from file", 6.4},  {"8b q4_k_m first token", 0.92},
};

// The median, and what lies around it.
struct Summary {
  double median, smallest, largest, spread, share, ratio;  // 0 where not known
};
bool less_is_better(const ReportRow& row) { return row.unit == "s" || row.unit == "us"; }

Summary summarize(const ReportRow& row, double peer) {
  std::vector<double> sorted = row.values;
  std::sort(sorted.begin(), sorted.end());
  Summary summary{};
  if (sorted.empty()) return summary;
  summary.median = sorted[sorted.size() / 2];
  summary.smallest = sorted.front();
  summary.largest = sorted.back();
  if (summary.median <= 0.0) return summary;
  summary.spread = (summary.largest - summary.smallest) / summary.median;
  const bool less = less_is_better(row);
  if (row.limit > 0.0)
    summary.share = less ? row.limit / summary.median : summary.median / row.limit;
  if (peer > 0.0) summary.ratio = less ? peer / summary.median : summary.median / peer;
  return summary;
}

std::string number_or(double value, const char* format, const char* otherwise) {
  if (value <= 0.0) return otherwise;
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

int decimals(double value) { return value >= 1000.0 ? 0 : value >= 10.0 ? 1 : 3; }

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text)
    if (c != '"' && c != '\\' && static_cast<unsigned char>(c) >= 0x20) out += c;
  return out + "\"";
}

}  // namespace

double peer_figure(const std::string& work) {
  for (const PeerFigure& figure : kPeerFigures)
    if (work == figure.work) return figure.value;
  return 0.0;
}

Report::Report(int32_t backend, const wcuda_device_caps& caps, std::string path)
    : device_(caps.name),
      is_cuda_(backend == WCUDA_BACKEND_CUDA),
      has_peer_(is_cuda_ && std::strstr(caps.name, "H200") != nullptr),
      path_(std::move(path)) {
  std::printf("%s (%s), worker-cuda %s\n", caps.name, is_cuda_ ? "CUDA" : "host",
              wcuda_version_string());
  std::printf("%-36s %10s %10s %10s %-6s %7s %10s %7s %8s %7s\n", "", "median", "smallest",
              "largest", "unit", "spread", "limit", "share", "peer", "ratio");
}

Status Report::add(const ReportRow& row) {
  rows_.push_back(row);
  const double peer = has_peer_ ? peer_figure(row.work) : 0.0;
  const Summary s = summarize(row, peer);
  const int places = decimals(s.median);
  std::printf("%-36s %10.*f %10.*f %10.*f %-6s %6.1f%% %10s %7s %8s %7s\n", row.work.c_str(),
              places, s.median, places, s.smallest, places, s.largest, row.unit.c_str(),
              100.0 * s.spread, number_or(row.limit, "%.4g", "-").c_str(),
              number_or(100.0 * s.share, "%.0f%%", "-").c_str(),
              number_or(peer, "%.4g", "-").c_str(), number_or(s.ratio, "%.2f", "-").c_str());
  std::fflush(stdout);
  return path_.empty() ? Status() : write();
}

void Report::note(const std::string& text) const {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

Status Report::write() const {
  std::FILE* file = std::fopen(path_.c_str(), "w");
  if (file == nullptr)
    return Status::native_error(WCUDA_IO, errno, "cannot write '%s': %s", path_.c_str(),
                                std::strerror(errno));
  std::fprintf(file, "{\"device\": %s, \"backend\": \"%s\", \"version\": \"%s\", \"rows\": [",
               quoted(device_).c_str(), is_cuda_ ? "cuda" : "host", wcuda_version_string());
  const char* separator = "\n";
  for (const ReportRow& row : rows_) {
    const double peer = has_peer_ ? peer_figure(row.work) : 0.0;
    const Summary s = summarize(row, peer);
    std::fprintf(
        file,
        "%s {\"work\": %s, \"value\": %.6g, \"unit\": \"%s\", \"limit\": %s, \"share\": %s, "
        "\"peer\": %s, \"ratio\": %s, \"spread\": %.4f}",
        separator, quoted(row.work).c_str(), s.median, row.unit.c_str(),
        number_or(row.limit, "%.6g", "null").c_str(), number_or(s.share, "%.4f", "null").c_str(),
        number_or(peer, "%.6g", "null").c_str(), number_or(s.ratio, "%.4f", "null").c_str(),
        s.spread);
    separator = ",\n";
  }
  std::fprintf(file, "\n]}\n");
  if (std::fclose(file) == 0) return {};
  return Status::native_error(WCUDA_IO, errno, "cannot write '%s': %s", path_.c_str(),
                              std::strerror(errno));
}

}  // namespace wcuda::bench
