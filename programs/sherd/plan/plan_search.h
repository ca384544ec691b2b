// `sherd plan --search`: the fastest run that fits, and what the constraints cost.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "plan.h"
#include "train_gpt/run/search.h"

namespace sherd::tools {

/// A search without one of its constraints, or with more ranks.
struct OtherSearch {
  std::string change;                                // "without --tp 4", "--ranks 32"
  std::optional<train_gpt::Candidate> fastest = {};  // that fits
  bool ended_early = false;                          // by its budget, which is smaller
};

struct PlanSearch {
  train_gpt::SearchResult result;
  std::vector<train_gpt::Candidate> best;  // distinct()
  std::vector<OtherSearch> others;
};

/// Searches what the request leaves open (PlanRequest::constraints), and where that has constraints or nothing fits, what it
/// would find without each of them, or with more ranks. @throws InvalidArgument for a pipeline or a list of parameters.
/// @param on_dry_run called after each dry run
[[nodiscard]] PlanSearch search_plans(const PlanRequest& request, std::function<void()> on_dry_run = {});

/// Returns the three fastest ways to make a plan fit that does not, a line each.
std::string remedies_table(const PlanRequest& request);

/// Returns the candidates, the command and the options of the fastest, and the costs of constraints.
std::string search_table(const PlanRequest& request, const PlanSearch& search);
/// The fields are described by kPlanJsonHelp.
nlohmann::ordered_json search_json(const PlanSearch& search);
/// Draws memory against step time of the candidates that were run, as the text of an SVG picture.
std::string draw_search(const PlanRequest& request, const PlanSearch& search);

}  // namespace sherd::tools
