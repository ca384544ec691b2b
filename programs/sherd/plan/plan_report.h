// A plan as a table and as JSON.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "plan.h"

namespace sherd::tools {

std::string plan_table(const PlanRequest& request, const Plan& plan);
/// The fields are described by kPlanJsonHelp.
nlohmann::ordered_json plan_json(const PlanRequest& request, const Plan& plan);

extern const char* const kPlanJsonHelp;

}  // namespace sherd::tools
