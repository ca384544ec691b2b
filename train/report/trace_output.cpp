#include <sherd/train/report/trace_output.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <sherd/kernels/ops.h>
#include <sherd/train/report/timeline.h>

namespace sherd {
namespace {

using Json = nlohmann::json;

/// Empty operation with which a step begins: where the device's clock says it did.
constexpr Operation kStep{"step", WorkKind::step};
/// Processes of one host share a clock; clocks of different hosts are further apart than this.
constexpr double kOneClock = 50e3;  // microseconds

/// Every rank's text, in rank order, on every rank.
std::vector<std::string> gather_texts(RankContext& rank, const std::string& text) {
  Stream& s = rank.device->compute();
  const auto ranks = static_cast<size_t>(rank.world->size());
  const auto mine = static_cast<int64_t>(text.size());
  std::vector<int64_t> sizes(ranks);
  const Tensor size = Tensor::empty(*rank.device, {1}, DType::i64, "trace");
  const Tensor all_sizes = Tensor::empty(*rank.device, {rank.world->size()}, DType::i64, "trace");
  ops::copy_from_host(s, size, &mine, sizeof mine);
  rank.world->all_gather(s, all_sizes, size);
  ops::copy_to_host(s, sizes.data(), all_sizes);

  int64_t total = 0;
  for (const int64_t n : sizes) total += n;
  std::string joined(static_cast<size_t>(total), '\0');
  const Tensor send = Tensor::empty(*rank.device, {mine}, DType::u8, "trace");
  const Tensor recv = Tensor::empty(*rank.device, {total}, DType::u8, "trace");
  ops::copy_from_host(s, send, text.data(), mine);
  rank.world->all_gather_v(s, recv, sizes, send);
  ops::copy_to_host(s, joined.data(), recv);
  std::vector<std::string> texts;
  size_t at = 0;
  for (const int64_t n : sizes) {
    texts.push_back(joined.substr(at, static_cast<size_t>(n)));
    at += static_cast<size_t>(n);
  }
  return texts;
}

/// With the host's time of a moment that is the same on all ranks.
std::string text_of(Trace& trace, double now) {
  Json records = Json::array();
  for (const TraceRecord& r : trace.records())
    records.push_back({r.device, r.stream, r.what, r.begin, r.end, r.kind});
  return Json{{"now", now}, {"left_out", trace.left_out()}, {"records", records}}.dump();
}

/// `first` is the number of the first traced step.
Timeline join(const std::vector<std::string>& texts, int64_t first) {
  Timeline t;
  double now = 0;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const Json json = Json::parse(texts[rank]);
    const auto here = json["now"].get<double>();
    if (rank == 0) now = here;
    const double shift = std::abs(now - here) > kOneClock ? now - here : 0;
    for (const Json& r : json["records"]) {
      const TraceRecord record{
          r[0], r[1], r[2], r[3].get<double>() + shift, r[4].get<double>() + shift, r[5].get<WorkKind>()};
      if (record.kind != WorkKind::step) {
        t.records.push_back(record);
      } else if (rank == 0) {
        t.marks.push_back({fmt::format("step {}", first++), record.begin});
      }
    }
    t.left_out += json["left_out"].get<int64_t>();
  }
  return t;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw IoError(fmt::format("cannot write '{}'; check the path and the disk", path));
}

}  // namespace

StepRange traced_steps(int64_t first, int64_t last, int64_t count) {
  const int64_t begin = std::max(first, std::min(first + 2, last - count + 1));
  return {begin, std::min(last, begin + count - 1)};
}

TraceOutput::TraceOutput(RankContext& rank, TraceOptions options)
    : rank_(rank), options_(std::move(options)) {
  if (options_.trace.empty() && options_.timeline.empty()) return;
  trace_ = std::make_shared<Trace>();
  rank.device->set_trace(trace_);
}

void TraceOutput::before_step(int64_t step) {
  if (!trace_) return;
  if (range_.last < range_.first) range_ = traced_steps(step, options_.last_step, options_.steps);
  const bool traced = step >= range_.first && step <= range_.last;
  trace_->set_enabled(traced);
  if (traced) rank_.device->compute().submit(kStep, [](ExecutionContext&) {});
}

std::vector<std::string> TraceOutput::write() {
  if (!trace_) return {};
  trace_->set_enabled(false);
  Stream& s = rank_.device->compute();
  rank_.world->barrier(s);
  s.synchronize();
  const double now = Trace::now();
  const auto texts = gather_texts(rank_, text_of(*trace_, now));
  if (rank_.world->rank() != 0) return {};
  Timeline timeline = join(texts, range_.first);
  timeline.title =
      fmt::format("{}, {} {}", options_.title, range_.first == range_.last ? "step" : "steps",
                  range_.first == range_.last ? fmt::format("{}", range_.first)
                                              : fmt::format("{} to {}", range_.first, range_.last));
  std::vector<std::string> lines = format_parts(parts_of(timeline));
  if (!options_.trace.empty()) {
    write_file(options_.trace, chrome_trace(timeline));
    lines.push_back(fmt::format("trace of {} operations: {}", timeline.records.size(), options_.trace));
  }
  if (!options_.timeline.empty()) {
    write_file(options_.timeline, draw_timeline(timeline));
    lines.push_back(fmt::format("timeline: {}", options_.timeline));
  }
  if (timeline.left_out > 0)
    lines.push_back(
        fmt::format("{} further operations are not in it: a rank records {} at most; trace fewer steps",
                    timeline.left_out, Trace::kLimit));
  return lines;
}

}  // namespace sherd
