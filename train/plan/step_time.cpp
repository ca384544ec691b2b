#include <sherd/train/plan/step_time.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>

namespace sherd {
namespace {

/// Largest number of a group's ranks on one host.
int ranks_on_a_host(const std::vector<int>& ranks, int ranks_per_host) {
  std::map<int, int> on;
  int most = 0;
  for (const int r : ranks) most = std::max(most, ++on[r / ranks_per_host]);
  return most;
}

bool computes_in_16_bits(const DryRecord& record) {
  return std::ranges::any_of(record.entries, [](const DryEntry& e) {
    return e.what.kind == WorkKind::product && size_of(e.work.dtype) == 2;
  });
}

/// Playing state. Times are seconds from the step's start.
class Player {
 public:
  Player(const DryRecord& record, const HardwareProfile& hardware, std::vector<TraceRecord>* records)
      : record_(record),
        hardware_(hardware),
        in_16_bits_(computes_in_16_bits(record)),
        rates_(in_16_bits_ ? hardware.rates_16 : hardware.rates_32),
        factors_(in_16_bits_ ? hardware.factors_16 : hardware.factors_32),
        records_(records),
        at_(record.streams.size()) {}

  StepTime play() {
    for (const DryEntry& e : record_.entries) take(e);
    const double end = *std::ranges::max_element(at_), update = update_ < 0 ? end : update_,
                 memory = seconds_of_memory(record_, hardware_);
    return {.total = end + memory,
            .compute = busy_ + memory,
            .exposed_communication = update - busy_,
            .optimizer = end - update};
  }

 private:
  double& at(const DryEntry& e) { return at_[static_cast<size_t>(e.stream)]; }

  void take(const DryEntry& e) {
    switch (e.kind) {
      case DryEntry::Kind::operation:
        return operate(e);
      case DryEntry::Kind::exchange:
        return exchange(e, record_.exchanges[static_cast<size_t>(e.number)]);
      case DryEntry::Kind::record:
        events_[e.number] = at(e);
        return;
      case DryEntry::Kind::wait:
        at(e) = std::max(at(e), events_[e.number]);
        return;
      case DryEntry::Kind::synchronize:
        host_ = std::max(host_, at(e));
        return;
    }
  }

  void operate(const DryEntry& e) {
    const bool computes = e.stream == 0;  // the stream that a device makes first
    if (computes && e.what.kind == WorkKind::update) update_ = at(e);
    const double begin = std::max(at(e), host_),
                 seconds = seconds_of(e.work, e.what.kind, hardware_, rates_) * factor_of(e.what.name);
    at(e) = begin + seconds;
    if (computes && update_ < 0) busy_ += seconds;
    note(e, e.what.name, begin);
  }

  void exchange(const DryEntry& e, const DryExchange& x) {
    const auto ranks = static_cast<int>(x.ranks->size());
    const auto [known, fresh] = here_.try_emplace(x.ranks.get());
    if (fresh) known->second = ranks_on_a_host(*x.ranks, hardware_.ranks_per_host);
    double& link = free_[known->second < ranks];
    const double begin = std::max({at(e), host_, link});
    const double seconds = seconds_of(static_cast<double>(x.bytes), ranks, known->second, hardware_);
    at(e) = link = begin + seconds;
    if (hardware_.shares_cores && e.stream != 0) at_.front() += seconds;
    note(e, x.op, begin);
  }

  double factor_of(std::string_view what) const {
    const auto at = factors_.find(what);
    return at == factors_.end() ? 1 : at->second;
  }

  void note(const DryEntry& e, const std::string& what, double begin) {
    if (records_ != nullptr)
      records_->push_back({"planned", record_.streams[static_cast<size_t>(e.stream)], what, begin * 1e6,
                           at(e) * 1e6, e.what.kind});
  }

  const DryRecord& record_;
  const HardwareProfile& hardware_;
  const bool in_16_bits_;
  const KindRates& rates_;
  const OperationFactors& factors_;
  std::vector<TraceRecord>* records_;
  std::vector<double> at_;  // by stream: the end of its last operation
  std::map<int64_t, double> events_;
  std::map<const std::vector<int>*, int> here_;  // by group: the most of its ranks on a host
  double free_[2] = {0, 0};  // from when the links inside a host and between hosts are free
  double host_ = 0;          // from when the host issues
  double busy_ = 0, update_ = -1;
};

}  // namespace

double seconds_of(const Work& work, WorkKind kind, const HardwareProfile& hardware, const KindRates& rates) {
  const auto of_kind = rates.find(kind);
  const auto kind_rate = [&](double otherwise) {
    if (of_kind == rates.end()) return otherwise;
    return work.width > 0 ? rate_at(of_kind->second, static_cast<double>(work.width))
                          : of_kind->second.back().rate;
  };
  const double memory = hardware.memory_bytes_per_s;
  double seconds = static_cast<double>(work.bytes) / (work.flops > 0 ? memory : kind_rate(memory));
  if (work.host_bytes > 0) seconds += static_cast<double>(work.host_bytes) / hardware.offload_bytes_per_s;
  if (work.flops > 0) {
    const double product = rate_at(hardware.products(work.dtype), work.flops);
    seconds =
        std::max(seconds, work.flops / std::min(product, kind_rate(product)) / hardware.compute_efficiency);
  }
  return static_cast<double>(work.times) * std::max(seconds, hardware.operation_s);
}

double seconds_of(double bytes, int ranks, int here, const HardwareProfile& hardware) {
  if (ranks == 1) return hardware.operation_s;
  double latency = hardware.host.latency_s, rate = rate_at(hardware.host.bytes_per_s, bytes);
  if (here < ranks) {
    latency = hardware.network.latency_s;
    rate = std::min(rate, here * rate_at(hardware.network.bytes_per_s, bytes));
  }
  return latency * std::log2(ranks) + bytes / (rate * hardware.communication_efficiency);
}

double seconds_of_memory(const DryRecord& record, const HardwareProfile& hardware) {
  const double rate =
      hardware.fresh_bytes_per_s > 0 ? hardware.fresh_bytes_per_s : .1 * hardware.memory_bytes_per_s;
  return static_cast<double>(std::min(record.taken, record.returned)) / rate;
}

StepTime play(const DryRecord& record, const HardwareProfile& hardware, std::vector<TraceRecord>* records) {
  return Player(record, hardware, records).play();
}

}  // namespace sherd
