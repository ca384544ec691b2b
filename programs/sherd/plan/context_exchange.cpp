#include "context_exchange.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string_view>
#include <vector>

namespace sherd::tools {
namespace {

constexpr const char* kExchange = "send_recv";

std::shared_ptr<const std::vector<int>> ranks_around(int rank, int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), rank / count * count);
  return std::make_shared<const std::vector<int>>(std::move(ranks));
}

/// Record with an exchange beside each attention.
class Ring {
 public:
  Ring(const DryRecord& record, int rank, const ContextPlan& plan)
      : plan_(plan),
        ranks_(ranks_around(rank, plan.ranks)),
        scale_(static_cast<double>(plan.ranks * plan.part + 1) / static_cast<double>(plan.part + 1)),
        out_{.streams = record.streams, .entries = {}, .exchanges = record.exchanges},
        stream_(static_cast<int>(record.streams.size())) {
    out_.streams.emplace_back("context");
    for (const DryEntry& e : record.entries) event_ = std::max(event_, e.number);
    for (const DryEntry& e : record.entries) take(e);
  }

  DryRecord record() && { return std::move(out_); }
  int64_t calls() const { return calls_; }
  int64_t bytes() const { return bytes_; }

 private:
  void take(const DryEntry& e) {
    const bool backward = e.what.kind == WorkKind::attention_backward;
    if (e.what.kind != WorkKind::attention && !backward) return out_.entries.push_back(e);
    const int64_t begins = ++event_, ends = ++event_;
    signal(e.stream, begins, stream_);
    const int64_t bytes = (plan_.ranks - 1) * plan_.kv_bytes * (backward ? 2 : 1);
    out_.entries.push_back({.kind = DryEntry::Kind::exchange,
                            .stream = stream_,
                            .what = {kExchange, WorkKind::exchange},
                            .number = static_cast<int64_t>(out_.exchanges.size())});
    out_.exchanges.push_back({kExchange, "keys and values", bytes, ranks_});
    calls_ += plan_.ranks - 1;
    bytes_ += bytes;
    out_.entries.push_back(e);
    out_.entries.back().work.flops *= scale_;
    signal(stream_, ends, e.stream);
  }

  /// `to` waits for what `from` has at this point.
  void signal(int from, int64_t event, int to) {
    out_.entries.push_back({.kind = DryEntry::Kind::record, .stream = from, .number = event});
    out_.entries.push_back({.kind = DryEntry::Kind::wait, .stream = to, .number = event});
  }

  const ContextPlan& plan_;
  const std::shared_ptr<const std::vector<int>> ranks_;
  const double scale_;
  DryRecord out_;
  const int stream_;
  int64_t event_ = 0, calls_ = 0, bytes_ = 0;
};

}  // namespace

void add_context(RankForecast& rank, const ContextPlan& plan) {
  if (plan.ranks == 1) return;
  Ring ring(rank.record, rank.rank, plan);
  const int first = rank.rank / plan.ranks * plan.ranks;
  const bool host = first / plan.ranks_per_host == (first + plan.ranks - 1) / plan.ranks_per_host;
  rank.collectives.push_back({kExchange, host ? "host" : "network", ring.calls(), ring.bytes()});
  rank.record = std::move(ring).record();
  rank.peak_bytes += 2 * plan.kv_bytes;
  rank.by_class["activation"] += 2 * plan.kv_bytes;
}

}  // namespace sherd::tools
