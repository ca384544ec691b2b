#include "train_gpt/run/run_plan.h"

#include <algorithm>

#include <fmt/format.h>

#include "train_gpt/run/forecast.h"

namespace train_gpt {
namespace {

constexpr int64_t kAllPlanned = 8;

sherd::CommCount total(const sherd::CommCounts& comm) {
  sherd::CommCount sum;
  for (const auto& [name, c] : comm) {
    sum.calls += c.calls;
    sum.bytes += c.bytes;
  }
  return sum;
}

std::string mib(int64_t bytes) { return fmt::format("{:.2f} MiB", static_cast<double>(bytes) / (1 << 20)); }

/// "+0.4 %"
std::string off(int64_t planned, int64_t measured) {
  if (planned == measured) return "exact";
  return fmt::format("{:+.2f} %", 100.0 * static_cast<double>(planned - measured) /
                                      static_cast<double>(std::max<int64_t>(1, measured)));
}

}  // namespace

RunPlan RunPlan::of(const TrainConfig& config, sherd::Device& device) {
  const ForecastOptions options{.device = dry_options(device)};
  RunPlan plan;
  for (int64_t rank = config.ranks <= kAllPlanned ? config.ranks : 1; rank-- > 0;) {
    const Forecast f = forecast(config, static_cast<int>(rank), options);
    plan.peak_bytes_ = std::max(plan.peak_bytes_, f.run_peak_bytes);
    plan.host_bytes_ = std::max(plan.host_bytes_, f.rank.host_bytes);
    plan.comm_ = f.comm;  // the last is rank 0's
  }
  return plan;
}

std::string RunPlan::start() const {
  const sherd::CommCount sum = total(comm_);
  const std::string host = host_bytes_ > 0 ? fmt::format(", {} of its host", mib(host_bytes_)) : "";
  return fmt::format("plan: peak {} of a rank{}; {} collectives and {} received per step on rank 0",
                     mib(peak_bytes_), host, sum.calls, mib(sum.bytes));
}

std::string RunPlan::end(int64_t peak_bytes, const sherd::CommCounts& comm) const {
  const sherd::CommCount planned = total(comm_), counted = total(comm);
  return fmt::format(
      "plan: peak {}, measured {} ({}); collectives {}, counted {} ({}); received {}, counted {} ({})",
      mib(peak_bytes_), mib(peak_bytes), off(peak_bytes_, peak_bytes), planned.calls, counted.calls,
      off(planned.calls, counted.calls), mib(planned.bytes), mib(counted.bytes),
      off(planned.bytes, counted.bytes));
}

}  // namespace train_gpt
