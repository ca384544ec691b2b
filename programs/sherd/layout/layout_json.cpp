#include "layout_json.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <ostream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "layout_summary.h"

namespace sherd::tools {
namespace {

std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

/// Text on its way out, and whether a comma is due.
class Writer {
 public:
  explicit Writer(std::ostream& out) : out_(out) {}
  ~Writer() { flush(); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    if (text_.size() > 1 << 20) flush();
  }
  /// Calls f(item) for each, commas between.
  template <class Items, class F>
  void list(const char* separator, const Items& items, F f) {
    bool first = true;
    for (const auto& item : items) {
      if (!first) put("{}", separator);
      first = false;
      f(item);
    }
  }

 private:
  void flush() {
    out_.write(text_.data(), static_cast<std::streamsize>(text_.size()));
    text_.clear();
  }
  std::ostream& out_;
  std::string text_;
};

/// The parameters of one bucket that rank 0, 1, 2, ... holds some of, asked for in that order.
class RankSweep {
 public:
  explicit RankSweep(const Bucket& bucket) : layout_(&bucket.layout), order_(bucket.params.size()) {
    std::iota(order_.begin(), order_.end(), 0);
    std::sort(order_.begin(), order_.end(), [&](int a, int b) {
      return std::pair(layout_->full_range(ParamId(a)).begin, a) <
             std::pair(layout_->full_range(ParamId(b)).begin, b);
    });
  }
  /// f(parameter, its piece) in the order of the buffer.
  template <class F>
  void pieces(int rank, F f) {
    const bool contiguous = layout_->zero_copy();
    const FullIndex begin(rank * layout_->slice()), end(begin + layout_->slice());
    while (contiguous && next_ < order_.size() && layout_->full_range(ParamId(order_[next_])).end <= begin)
      ++next_;
    for (size_t k = next_; k < order_.size(); ++k) {
      if (contiguous && layout_->full_range(ParamId(order_[k])).begin >= end) return;
      const ParamRange piece = layout_->piece(ParamId(order_[k]), RankId(rank));
      if (!piece.empty()) f(order_[k], piece);
    }
  }

 private:
  const ShardLayout* layout_;
  std::vector<int> order_;
  size_t next_ = 0;
};

class JsonLayout {
 public:
  JsonLayout(std::ostream& out, const Arrangement& a) : w_(out), a_(a), matrices_(a.buffers.size()) {
    for (const ParamEntry& p : a.model) names_.push_back(quoted(p.name));
    for (size_t m = 0; m < a.matrices.size(); ++m)
      matrices_[a.places[a.matrix_param[m]].buffer].push_back(static_cast<int>(m));
  }

  void write() {
    w_.put("{{\"world\": {}, \"policy\": {}, \"align\": {}, \"bucket_elements\": {},\n\"buffers\": [\n",
           a_.options.world, quoted(to_string(a_.options.layout)), a_.options.align,
           a_.options.bucket_elements);
    w_.list(",\n", a_.buffers, [&](const Buffer& b) { buffer(b); });
    w_.put("],\n\"plan\": [\n");
    size_t m = 0;
    w_.list(",\n", a_.plan.entries, [&](const PlanEntry& e) {
      w_.put(
          "{{\"name\": {}, \"block\": {}, \"mode\": \"{}\", \"owners\": [{}], \"bytes\": {}, \"flops\": {}}}",
          names_[a_.matrix_param[m]], quoted(a_.matrices[m].block), name_of(e.mode),
          fmt::join(e.owners, ", "), e.bytes, e.flops);
      ++m;
    });
    w_.put("],\n");
    if (a_.options.soap)
      w_.put("\"plan_ranks\": [{}],\n\"state_imbalance\": {}, ", plan_ranks(), state_imbalance(a_));
    w_.put("\"imbalance\": {}, \"redundancy\": {}, \"fingerprint\": \"{:016x}\"}}\n", a_.plan.imbalance,
           a_.plan.redundancy, a_.fingerprint());
  }

 private:
  std::string plan_ranks() const {
    std::string text;
    for (const PlanRank& r : a_.plan.ranks)
      text += fmt::format("{}{{\"state_bytes\": {}, \"cost\": {}}}", text.empty() ? "" : ", ", r.state_bytes,
                          r.cost);
    return text;
  }

  void buffer(const Buffer& b) {
    w_.put("{{\"name\": {}, \"dtype\": \"{}\", \"elements\": {}, \"padding\": {},\n\"buckets\": [",
           quoted(b.name), name_of(b.dtype), b.elements, b.padding);
    w_.list(", ", b.buckets, [&](const Bucket& k) {
      w_.put("{{\"start\": {}, \"end\": {}, \"slice\": {}}}", k.start, k.start + k.layout.buffer_elements(),
             k.layout.slice());
    });
    w_.put("],\n\"params\": [\n");
    params(b);
    w_.put("],\n\"ranks\": [\n");
    ranks(b);
    w_.put("]}}");
  }

  void params(const Buffer& b) {
    std::vector<std::pair<int, int>> in_model_order;  // model index, bucket
    for (size_t k = 0; k < b.buckets.size(); ++k)
      for (int i : b.buckets[k].params) in_model_order.emplace_back(i, static_cast<int>(k));
    std::sort(in_model_order.begin(), in_model_order.end());
    w_.list(",\n", in_model_order, [&](const auto& item) {
      const Bucket& bucket = b.buckets[item.second];
      const FullRange range = bucket.layout.full_range(ParamId(a_.places[item.first].param));
      w_.put("{{\"name\": {}, \"optimizer\": \"{}\", \"start\": {}, \"end\": {}, \"bucket\": {}}}",
             names_[item.first], sherd::name_of(a_.model[item.first].optimizer),
             bucket.start + range.begin.value, bucket.start + range.end.value, item.second);
    });
  }

  void ranks(const Buffer& b) {
    std::vector<double> cost(static_cast<size_t>(a_.options.world));
    for (int m : matrices_[&b - a_.buffers.data()])
      for (int owner : a_.plan.entries[m].owners) cost[owner] += a_.work->cost(a_.matrices[m]);
    std::vector<RankSweep> sweeps(b.buckets.begin(), b.buckets.end());
    std::vector<int> all(static_cast<size_t>(a_.options.world));
    std::iota(all.begin(), all.end(), 0);
    w_.list(",\n", all, [&](int rank) {
      int64_t elements = 0;
      std::string pieces;
      for (size_t k = 0; k < sweeps.size(); ++k)
        sweeps[k].pieces(rank, [&](int p, ParamRange piece) {
          elements += piece.size();
          if (!pieces.empty()) pieces += ",\n  ";
          pieces += piece_text(b.buckets[k], p, piece);
        });
      w_.put("{{\"rank\": {}, \"elements\": {}, \"cost\": {}, \"pieces\": [{}]}}", rank, elements, cost[rank],
             pieces);
    });
  }

  std::string piece_text(const Bucket& bucket, int p, ParamRange piece) const {
    const int64_t width = row_size(bucket.layout.params()[p].shape);
    std::string rows = "null";
    if (piece.begin.value % width == 0 && piece.end.value % width == 0)
      rows = fmt::format("[{}, {}]", piece.begin.value / width, piece.size() / width);
    return fmt::format("{{\"name\": {}, \"elements\": [{}, {}], \"rows\": {}}}", names_[bucket.params[p]],
                       piece.begin.value, piece.end.value, rows);
  }

  Writer w_;
  const Arrangement& a_;
  std::vector<std::string> names_;          // as JSON
  std::vector<std::vector<int>> matrices_;  // of each buffer
};

}  // namespace

const char* const kLayoutJsonHelp =
    R"(--json prints one object:
  buffers[]    name, dtype; elements (with padding) and padding;
               buckets[] {start, end, slice}: rank r owns [start + r*slice, start + (r+1)*slice)
                 of the buffer;
               params[] {name, optimizer, start, end, bucket}: where the parameter lies in the buffer.
                 Under even_rows: in the full buffer that forward uses, which has no padding;
               ranks[] {rank, elements (without padding), cost, pieces[]}: cost is the Newton-Schulz
                 cost, 5 * s^2 * (2l + s) with the short side s and the long side l, or SOAP's FLOPs, of
                 the buffer's matrices that the rank computes; a piece has the parameter's name, elements
                 [begin, end) of the parameter, and rows [first, count], null where a row is cut
  plan[]       the matrices of Muon or SOAP in model order: name, block, mode, owners[], bytes that travel (messages of
               4 bytes, fp32, for each element), flops
  plan_ranks[] with --optimizer soap: state_bytes and cost of the matrices that each rank owns;
               state_imbalance as imbalance, of state_bytes
  imbalance    largest cost on a rank / max(sum of all matrices' costs / ranks, largest single cost)
  redundancy   cost of all ranks / cost of computing every matrix once
  fingerprint  of all layouts and the plan; world, policy, align, bucket_elements as given
)";

void write_json(std::ostream& out, const Arrangement& a) { JsonLayout(out, a).write(); }

}  // namespace sherd::tools
