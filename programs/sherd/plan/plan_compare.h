// Candidates of a run: its strategies, layouts and Muon modes side by side.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "plan.h"

namespace sherd::tools {

struct Candidate {
  PlanRequest request;
  Plan plan;
  /// Why it is not the first: what makes it slower, or how much memory is missing.
  std::string why;
  /// The plan leaves the optimizer's memory and work out: the rest does not fit already.
  bool without_optimizer = false;
};

/// Returns the candidates: those that fit first, by step time.
[[nodiscard]] std::vector<Candidate> compare_plans(const PlanRequest& request);

std::string candidates_table(const std::vector<Candidate>& candidates);
nlohmann::ordered_json candidates_json(const std::vector<Candidate>& candidates);

}  // namespace sherd::tools
