// Plans over the number of ranks, as a table and a picture.
#pragma once

#include <string>
#include <vector>

#include "plan.h"

namespace sherd::tools {

/// Numbers of ranks: first, then doubled up to last.
struct Sweep {
  int64_t first = 0, last = 0;
};
/// Parses "world=8..65536". @throws InvalidArgument that says the form.
Sweep parse_sweep(const std::string& text);

struct SweepPoint {
  int64_t world = 0;
  Plan plan;
};
/// Returns the plans, each with the request's batch per rank. @throws InvalidArgument for ranks that the request's
/// mesh does not divide.
[[nodiscard]] std::vector<SweepPoint> sweep_plans(const PlanRequest& request, const Sweep& sweep);

std::string sweep_table(const std::vector<SweepPoint>& points);
/// Draws memory per rank and step time over the ranks, as the text of an SVG picture.
std::string draw_sweep(const PlanRequest& request, const std::vector<SweepPoint>& points);

}  // namespace sherd::tools
