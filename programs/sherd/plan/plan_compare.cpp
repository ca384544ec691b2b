#include "plan_compare.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <sherd/base/error.h>

#include "plan_report.h"
#include "text.h"

namespace sherd::tools {
namespace {

using train_gpt::LayoutWord;

struct MuonChoice {
  MatrixMode mode;
  bool inexact;
};

constexpr int64_t kAddressSpace = int64_t{1} << 47;  // of a process

int64_t held(const Plan& p) { return p.most_loaded().peak_bytes + p.most_loaded().by_class.at("slack"); }

/// Part of the step in which a candidate loses most to the first.
std::string slower(const StepTime& first, const StepTime& t) {
  const std::tuple<double, const char*> parts[] = {
      {t.exposed_communication - first.exposed_communication, "exposed communication"},
      {t.optimizer - first.optimizer, "optimizer"},
      {t.compute - first.compute, "compute"}};
  const auto [seconds, part] = *std::ranges::max_element(parts);
  return fmt::format("{:.1f} % slower: {:.2f} ms more of {}", 100 * (t.total / first.total - 1),
                     seconds * 1e3, part);
}

std::string reason(const Candidate& first, const Candidate& c) {
  if (!c.plan.fits && c.plan.time.total == 0) return "does not fit: more bytes than a process can address";
  if (!c.plan.fits)
    return fmt::format("does not fit: {}{} of {}", c.without_optimizer ? "without the optimizer " : "",
                       bytes_text(held(c.plan)), bytes_text(c.request.memory_bytes()));
  if (&c == &first || c.plan.time.total <= first.plan.time.total) return "fastest that fits";
  return slower(first.plan.time, c.plan.time);
}

/// What would make it fit, with the same strategy. Plans of Muon over many matrices and ranks take seconds each: none where the rest
/// does not fit already.
std::string remedy(const Candidate& c) {
  constexpr int64_t kWork = 200'000;  // operations of dry runs
  if (c.plan.fits || c.request.pipeline > 1 || c.without_optimizer) return "";
  train_gpt::Constraints limits = c.request.constraints;
  limits.fixed.insert("strategy");
  const auto found = train_gpt::remedies(
      c.request.config,
      {.hardware = c.request.hardware, .forecast = forecast_options(c.request), .most_work = kWork}, limits,
      1);
  return found.empty() ? "" : "; " + in_words(found.front());
}

std::vector<PlanRequest> requests_of(const PlanRequest& base) {
  const bool muon = base.config.optimizer == train_gpt::OptimizerWord::muon;
  std::vector<PlanRequest> all;
  for (const Strategy strategy :
       {Strategy::no_shard, Strategy::optim, Strategy::optim_grads, Strategy::optim_grads_params})
    for (const LayoutWord layout : {LayoutWord::ragged, LayoutWord::even_rows, LayoutWord::whole_param})
      for (const MuonChoice m : {MuonChoice{MatrixMode::owner, false},
                                 {MatrixMode::automatic, true},
                                 {MatrixMode::gather, false}}) {
        if (!muon && m.mode != MatrixMode::owner) continue;
        PlanRequest r = base;
        r.config.strategy = strategy;
        r.config.layout = layout;
        if (muon) {
          r.config.muon_mode = m.mode;
          r.config.muon_allow_inexact = m.inexact;
        }
        all.push_back(std::move(r));
      }
  return all;
}

/// Whole matrices on thousands of ranks can need more than the dry device's address space.
Plan plan_or_too_large(const PlanRequest& r) {
  try {
    return make_plan(r, PlannedRanks::few);
  } catch (const OutOfMemory&) {
    Plan plan;
    plan.ranks.push_back(
        {.peak_bytes = kAddressSpace, .by_class = {{"slack", 0}}, .collectives = {}, .record = {}});
    return plan;
  }
}

/// Returns the plan without the optimizer's memory and work, if that alone does not fit. Muon's plan over many matrices
/// and ranks takes seconds; this one does not depend on Muon's mode.
std::optional<Plan> plan_without_optimizer(PlanRequest r) {
  r.config.optimizer = train_gpt::OptimizerWord::adamw;
  Plan plan = plan_or_too_large(r);
  if (plan.time.total == 0) return plan;
  for (RankForecast& rank : plan.ranks) rank.peak_bytes -= std::exchange(rank.by_class["optimizer"], 0);
  const double with = plan.time.total;
  plan.time.total -= std::exchange(plan.time.optimizer, 0);
  for (double* rate : {&plan.tokens_per_s, &plan.flops_per_s, plan.mfu ? &*plan.mfu : nullptr})
    if (rate != nullptr) *rate *= with / plan.time.total;
  plan.fits = held(plan) <= planned_limit(r.memory_bytes());
  return plan.fits ? std::nullopt : std::optional(std::move(plan));
}

/// A mode that sums Gram matrices is called gram.
std::string mode_of(const train_gpt::TrainConfig& c) {
  if (c.optimizer != train_gpt::OptimizerWord::muon) return "-";
  return c.muon_allow_inexact ? "gram" : name_of(c.muon_mode);
}

}  // namespace

std::vector<Candidate> compare_plans(const PlanRequest& base) {
  std::vector<Candidate> all;
  std::map<std::pair<Strategy, LayoutWord>, std::optional<Plan>> too_large;  // by strategy and layout
  for (PlanRequest& r : requests_of(base)) {
    std::optional<Plan> plan;
    if (r.config.optimizer != train_gpt::OptimizerWord::adamw) {
      const auto [it, added] = too_large.try_emplace({*r.config.strategy, r.config.layout});
      if (added) it->second = plan_without_optimizer(r);
      plan = it->second;
    }
    const bool without_optimizer = plan.has_value();
    if (!plan) plan = plan_or_too_large(r);
    all.push_back({std::move(r), std::move(*plan), "", without_optimizer});
  }
  std::ranges::stable_sort(all, {}, [](const Candidate& c) {
    return std::tuple(!c.plan.fits, c.plan.fits ? c.plan.time.total : static_cast<double>(held(c.plan)));
  });
  for (Candidate& c : all) c.why = reason(all.front(), c) + remedy(c);
  return all;
}

std::string candidates_table(const std::vector<Candidate>& candidates) {
  std::string text = fmt::format("  {:<20}{:<13}{:<8}{:>12} {:>14}  {}\n", "strategy", "layout", "muon",
                                 "memory", "step", "why");
  for (const Candidate& c : candidates)
    text += fmt::format("  {:<20}{:<13}{:<8}{:>12} {:>11.1f} ms  {}\n", name_of(*c.request.config.strategy),
                        word_of(c.request.config.layout), mode_of(c.request.config), bytes_text(held(c.plan)),
                        c.plan.time.total * 1e3, c.why);
  return text;
}

nlohmann::ordered_json candidates_json(const std::vector<Candidate>& candidates) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Candidate& c : candidates) {
    all.push_back(plan_json(c.request, c.plan));
    all.back()["muon_mode"] = mode_of(c.request.config);
    all.back()["why"] = c.why;
    all.back()["without_optimizer"] = c.without_optimizer;
  }
  return all;
}

}  // namespace sherd::tools
