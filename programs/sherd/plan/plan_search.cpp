#include "plan_search.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <sherd/base/error.h>
#include <sherd/train/report/detail/svg.h>
#include <sherd/train/settings/fields.h>

#include "text.h"
#include "train_gpt/settings/optimizer_config.h"
#include "train_gpt/settings/settings.h"

namespace sherd::tools {
namespace {

using train_gpt::Candidate;
using train_gpt::Constraints;
using train_gpt::Search;
using train_gpt::TrainConfig;

constexpr size_t kShown = 5;
/// Operations in dry runs of a further search, which answers how much a constraint costs.
constexpr int64_t kFurtherWork = 1'000'000;
constexpr int64_t kLargestWorld = 65536;

std::string flags_of(const Candidate& c) {
  return c.changes.empty() ? "as given" : fmt::format("{}", fmt::join(c.changes, " "));
}

/// The flags of train_gpt, without sizes that the model has.
std::vector<std::string> run_flags(TrainConfig c) {
  TrainConfig standard;
  if (!c.model.empty()) {
    standard.model = c.model;
    take_sizes(standard, train_gpt::model_source(c), false);
    standard.model.clear();
    c.tokens = "FILE";
  }
  if (c.device == DeviceKind::cuda && c.ranks > 1) c.comm = BackendKind::nccl;
  return changed_flags(c, standard, [](std::string_view) { return true; });
}

/// {"--ranks", "4"} of {"--ranks 4"}
std::vector<std::string> words_of(const std::vector<std::string>& flags) {
  std::vector<std::string> words;
  for (const std::string& flag : flags) {
    const size_t space = flag.find(' ');
    words.push_back(flag.substr(0, space));
    if (space != std::string::npos) words.push_back(flag.substr(space + 1));
  }
  return words;
}

std::vector<std::string> program_of(const TrainConfig& c) {
  const FullyShardOptions standard;
  std::vector<std::string> lines = {fmt::format("// mesh: replicate {} x shard {} x context {} x tp {}",
                                                c.replicas, c.data_ranks() / c.replicas, c.context, c.tp),
                                    "FullyShardOptions options;"};
  const auto set = [&](bool changed, const char* member, const char* type, std::string_view value) {
    if (changed) lines.push_back(fmt::format("options.{} = {}::{};", member, type, value));
  };
  const LayoutPolicy layout = train_gpt::layout_of(c).policy;
  set(*c.strategy != standard.strategy, "strategy", "Strategy", name_of(*c.strategy));
  set(c.outer != standard.outer, "outer", "Outer", name_of(c.outer));
  set(c.precision != standard.compute_dtype, "compute_dtype", "DType", name_of(c.precision));
  set(c.master != standard.master, "master", "Master", train_gpt::word_of(c.master));
  set(train_gpt::master_place(c) == Place::host, "master_place", "Place", "host");
  set(c.grad_dtype != standard.grad_dtype, "grad_dtype", "DType", name_of(c.grad_dtype));
  set(layout != standard.layout, "layout", "LayoutPolicy", word_of(c.layout));
  if (train_gpt::quantizes_state(c)) lines.push_back("options.whole_state_blocks = true;");
  lines.push_back(fmt::format("RootOptions root{{.prefetch = {}}};", c.prefetch));
  const bool host = c.offload != "none", narrow = c.state_dtype != DType::f32;
  const bool muon = c.optimizer == train_gpt::OptimizerWord::muon;
  if (host || narrow || muon) lines.push_back("OptimizerOptions optimizer;");
  if (narrow) lines.push_back(fmt::format("optimizer.state_dtype = DType::{};", name_of(c.state_dtype)));
  if (host) lines.push_back("optimizer.state_place = Place::host;");
  if (muon)
    lines.push_back(fmt::format("optimizer.muon.whole.mode = MatrixMode::{};",
                                c.muon_mode == MatrixMode::automatic ? "automatic" : name_of(c.muon_mode)));
  if (muon && c.muon_allow_inexact) lines.push_back("optimizer.muon.whole.allow_inexact = true;");
  if (muon && c.muon_working != DType::f32)
    lines.push_back(
        fmt::format("optimizer.muon.orthogonalize.working = DType::{};", name_of(c.muon_working)));
  if (c.recompute != train_gpt::Recompute::none)
    lines.push_back(fmt::format("// blocks: set_recompute(true{});",
                                c.recompute == train_gpt::Recompute::offload ? ", Place::host" : ""));
  if (c.grad_accum > 1)
    lines.push_back(
        fmt::format("// {} microbatches a step, all but the last inside of Accumulate", c.grad_accum));
  return lines;
}

std::string row(const PlanRequest& r, const Candidate& c) {
  return fmt::format("{:>10.1f} ms {:>12} {:>12.0f}  {}{}\n", c.time.total * 1e3, bytes_text(c.bytes),
                     static_cast<double>(r.config.batch * r.config.seq) / c.time.total, flags_of(c),
                     c.same_bits ? "" : "  (other bits)");
}

/// The constraints of the request, each with the search that lacks it.
std::vector<std::pair<std::string, Constraints>> without_each(const PlanRequest& r) {
  std::vector<std::pair<std::string, Constraints>> all;
  const auto add = [&](const std::string& name, auto change) {
    all.emplace_back(name, r.constraints);
    change(all.back().second);
  };
  for (const std::string& name : r.constraints.fixed)
    add(flag_of(name), [&](Constraints& c) { c.fixed.erase(name); });
  if (r.constraints.max_tp > 0) add("--max-tp", [](Constraints& c) { c.max_tp = 0; });
  if (r.constraints.keep_bits) add("--keep-bits", [](Constraints& c) { c.keep_bits = false; });
  if (r.constraints.memory_bytes > 0) add("--memory-limit", [](Constraints& c) { c.memory_bytes = 0; });
  return all;
}

OtherSearch other(std::string change, const train_gpt::SearchResult& result) {
  return {std::move(change), result.fits() ? std::optional(result.candidates.front()) : std::nullopt,
          result.ended_early};
}

std::string other_line(const PlanSearch& s, const OtherSearch& o) {
  if (!o.fastest)
    return fmt::format("  {}: {}\n", o.change, s.result.fits() ? "no other answer" : "nothing fits");
  if (!s.result.fits())
    return fmt::format("  {}: fits, {} and {:.1f} ms, with {}\n", o.change, bytes_text(o.fastest->bytes),
                       o.fastest->time.total * 1e3, flags_of(*o.fastest));
  const double cost = s.result.candidates.front().time.total / o.fastest->time.total - 1;
  if (cost < 1e-3)
    return fmt::format("  {}: no faster{}\n", o.change,
                       o.ended_early ? " one found in a shorter search" : "");
  return fmt::format("  {}: {}{:.1f} % faster, {:.1f} ms, with {}\n", o.change,
                     o.ended_early ? "at least " : "", 100 * cost / (1 + cost), o.fastest->time.total * 1e3,
                     flags_of(*o.fastest));
}

}  // namespace

std::string remedies_table(const PlanRequest& r) {
  if (r.pipeline > 1) return "what would make it fit is not searched for with --pipeline\n";
  std::string text;
  for (const Candidate& c : train_gpt::remedies(
           r.config, {.hardware = r.hardware, .forecast = forecast_options(r), .most_work = 2 * kFurtherWork},
           r.constraints, 3))
    text += in_words(c) + "\n";
  return text.empty() ? "no other --strategy, --grad-accum, --recompute, form or --offload makes it fit; see "
                        "--search\n"
                      : text;
}

PlanSearch search_plans(const PlanRequest& r, std::function<void()> on_dry_run) {
  if (r.pipeline > 1 || r.listed)
    throw InvalidArgument("--search: of runs of train_gpt alone; leave --pipeline and --params out");
  train_gpt::SearchOptions options{
      .hardware = r.hardware, .forecast = forecast_options(r), .on_dry_run = std::move(on_dry_run)};
  Search search(r.config, options);
  PlanSearch all{.result = search.run(r.constraints), .best = {}, .others = {}};
  if (all.result.considered == 0)
    throw InvalidArgument(
        fmt::format("--search: no arrangement of {} ranks that is allowed divides a batch of {} sequences; "
                    "give another --batch",
                    r.config.ranks, r.config.batch));
  all.best = train_gpt::distinct(all.result.candidates, kShown);
  for (const auto& [name, constraints] : without_each(r))
    all.others.push_back(other("without " + name, search.run(constraints, kFurtherWork)));
  options.most_work = kFurtherWork;
  OtherSearch more;
  for (TrainConfig c = r.config; !all.result.fits() && !all.result.candidates.empty() &&
                                 c.ranks * 2 <= std::min(16 * r.config.ranks, kLargestWorld);) {
    c.ranks *= 2;
    more = other(fmt::format("--ranks {}", c.ranks), Search(c, options).run(r.constraints));
    if (more.fastest) break;
  }
  if (!more.change.empty()) all.others.push_back(more);
  return all;
}

std::string search_table(const PlanRequest& r, const PlanSearch& s) {
  std::string text = fmt::format(
      "{} arrangements of ranks and microbatches, of which {} do not fit by a bound; {} dry runs\n",
      s.result.considered, s.result.too_large, s.result.runs);
  if (s.result.ended_early) text += "the budget of dry runs ended: not all candidates were tried\n";
  const int64_t limit = r.memory_bytes();
  if (s.result.candidates.empty()) {
    text +=
        fmt::format("NO CANDIDATE CAN BE RUN: {}\n",
                    s.result.refused.empty() ? "leave some of the flags to the search" : s.result.refused);
  } else if (!s.result.fits()) {
    const Candidate& nearest = s.result.candidates.front();
    text += fmt::format("NOTHING FITS in 99 % of {} of a rank. The nearest takes {}, {} too much: {}\n",
                        bytes_text(limit), bytes_text(nearest.bytes),
                        bytes_text(nearest.bytes - planned_limit(limit)), flags_of(nearest));
  } else {
    text += fmt::format("no run that fits is faster than {:.1f} ms\n\n  {:>13} {:>12} {:>12}  {}\n",
                        s.result.bound * 1e3, "step", "memory", "tokens/s", "flags");
    for (const Candidate& c : s.best) text += row(r, c);
    text += fmt::format("\n  train_gpt {}\n\n", fmt::join(run_flags(s.best.front().config), " "));
    for (const std::string& line : program_of(s.best.front().config)) text += fmt::format("  {}\n", line);
  }
  if (!s.others.empty()) text += "\n";
  for (const OtherSearch& o : s.others) text += other_line(s, o);
  return text;
}

nlohmann::ordered_json search_json(const PlanSearch& s) {
  using nlohmann::ordered_json;
  const auto json_of = [](const Candidate& c) {
    return ordered_json{{"flags", c.changes}, {"step_ms", c.time.total * 1e3},
                        {"bytes", c.bytes},   {"host_bytes", c.host_bytes},
                        {"fits", c.fits},     {"same_bits", c.same_bits}};
  };
  ordered_json all = ordered_json::array(), best = ordered_json::array(), others = ordered_json::array();
  for (const Candidate& c : s.result.candidates) all.push_back(json_of(c));
  for (const Candidate& c : s.best) best.push_back(json_of(c));
  for (const OtherSearch& o : s.others)
    others.push_back({{"change", o.change},
                      {"fastest", o.fastest ? json_of(*o.fastest) : ordered_json()},
                      {"ended_early", o.ended_early}});
  return {{"arrangements", s.result.considered},
          {"too_large", s.result.too_large},
          {"dry_runs", s.result.runs},
          {"bound_ms", s.result.bound * 1e3},
          {"ended_early", s.result.ended_early},
          {"fits", s.result.fits()},
          {"run", s.best.empty() ? ordered_json() : ordered_json(words_of(run_flags(s.best.front().config)))},
          {"program", s.best.empty() ? ordered_json() : ordered_json(program_of(s.best.front().config))},
          {"best", std::move(best)},
          {"others", std::move(others)},
          {"candidates", std::move(all)}};
}

std::string draw_search(const PlanRequest& r, const PlanSearch& s) {
  constexpr double kWidth = 760, kHeight = 420, kLeft = 70, kRight = 730, kTop = 50, kBottom = 370;
  const double limit = static_cast<double>(r.memory_bytes());
  constexpr double kGib = 1 << 30;
  double most = limit, longest = 0;
  for (const Candidate& c : s.result.candidates) {
    most = std::max(most, static_cast<double>(c.bytes));
    longest = std::max(longest, c.time.total);
  }
  const auto x = [&](double seconds) {
    return kLeft + (kRight - kLeft) * seconds / (1.05 * std::max(longest, 1e-9));
  };
  const auto y = [&](double bytes) { return kBottom - (kBottom - kTop) * bytes / (1.05 * most); };
  std::string text = svg::text(kLeft, 28, "start",
                               fmt::format("memory of a rank (GiB) against step time (ms): {} ranks of {}",
                                           r.config.ranks, r.hardware.name),
                               " font-size=\"15\"");
  const auto line = [&](double x1, double y1, double x2, double y2, const char* style) {
    text += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2,
                        y2, style);
  };
  const svg::Ticks bytes(1.05 * most / kGib, 5), times(1.05 * std::max(longest, 1e-9) * 1e3, 6);
  for (double v = 0; v * kGib <= 1.05 * most; v += bytes.distance) {
    line(kLeft, y(v * kGib), kRight, y(v * kGib), "stroke=\"#ddd\"");
    text += svg::text(kLeft - 8, y(v * kGib) + 4, "end", bytes.label(v));
  }
  for (double v = 0; v <= 1.05e3 * longest; v += times.distance)
    text += svg::text(x(v / 1e3), kBottom + 18, "middle", times.label(v));
  line(kLeft, y(limit), kRight, y(limit), "stroke=\"#cc6677\" stroke-dasharray=\"6 4\"");
  text += svg::text(kRight, y(limit) - 5, "end", "memory of a rank", " fill=\"#cc6677\"");
  for (const Candidate& c : s.result.candidates)
    text += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"><title>{}</title></circle>\n",
        x(c.time.total), y(static_cast<double>(c.bytes)), c.fits ? "#4477aa" : "#bbbbbb", flags_of(c));
  return svg::page(kWidth, kHeight, 12, text);
}

}  // namespace sherd::tools
