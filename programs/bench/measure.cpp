#include "measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <sherd/base/error.h>

namespace sherd_bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(sherd::Device& device, int64_t calls, const std::function<void()>& work) {
  device.compute().synchronize();
  const auto start = Clock::now();
  for (int64_t i = 0; i < calls; ++i) work();
  device.compute().synchronize();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Timing measure(sherd::Device& device, const MeasureOptions& options, const std::function<void()>& work) {
  seconds_of(device, 1, work);
  const double once = std::max(1e-9, seconds_of(device, 1, work));
  Timing t;
  t.calls = std::clamp<int64_t>(std::llround(options.batch_ms * 1e-3 / once), 1, 2000);
  std::vector<double> seconds;
  for (int round = 0; round < options.rounds; ++round)
    seconds.push_back(seconds_of(device, t.calls, work) / static_cast<double>(t.calls));
  std::sort(seconds.begin(), seconds.end());
  t.median = seconds[seconds.size() / 2];
  t.spread = (seconds.back() - seconds.front()) / t.median;
  return t;
}

std::string format_rows(const std::vector<Row>& rows) {
  std::string text = fmt::format("{:<28}{:<28}{:>12}{:>9}{:>11}{:>11}{:>12}\n", "", "", "us", "spread",
                                 "GB/s", "TFLOP/s", "of ceiling");
  for (const Row& r : rows) {
    text += fmt::format("{:<28}{:<28}{:>12.1f}{:>7.1f} %", r.name, r.shape, r.timing.median * 1e6,
                        100 * r.timing.spread);
    text += r.bytes > 0 ? fmt::format("{:>11.4g}", r.gb_per_s()) : fmt::format("{:>11}", "");
    text += r.flops > 0 ? fmt::format("{:>11.4g}", r.tflop_per_s()) : fmt::format("{:>11}", "");
    text += r.of_ceiling > 0 ? fmt::format("{:>12.2f}\n", r.of_ceiling) : "\n";
  }
  return text;
}

void write_rows(const std::string& path, const std::string& suite, const std::string& device,
                const std::vector<Row>& rows) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const Row& r : rows) {
    Json row = {{"name", r.name},
                {"shape", r.shape},
                {"us", r.timing.median * 1e6},
                {"spread", r.timing.spread},
                {"calls", r.timing.calls}};
    if (r.bytes > 0) {
      row["bytes"] = r.bytes;
      row["gb_per_s"] = r.gb_per_s();
    }
    if (r.flops > 0) {
      row["flops"] = r.flops;
      row["tflop_per_s"] = r.tflop_per_s();
    }
    if (r.of_ceiling > 0) row["of_ceiling"] = r.of_ceiling;
    list.push_back(row);
  }
  std::ofstream file(path, std::ios::binary);
  file << Json{{"suite", suite}, {"device", device}, {"rows", list}}.dump(1) << '\n';
  file.close();
  if (!file) throw sherd::IoError(fmt::format("cannot write '{}'; check the path and the disk", path));
}

}  // namespace sherd_bench
