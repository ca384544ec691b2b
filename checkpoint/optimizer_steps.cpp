#include <sherd/checkpoint/optimizer_steps.h>

#include <algorithm>
#include <string>

#include <nlohmann/json.hpp>

#include <sherd/base/detail/json_text.h>
#include <sherd/fsdp/update_set.h>

namespace sherd {
namespace {

constexpr const char* kKey = "optimizer.steps";

std::string first_parameter(ModuleBase& root, const Optimizer& optimizer) {
  for (auto& [name, p] : root.named_parameters())
    if (optimizer.updates().holds(p)) return name;
  return "";
}

}  // namespace

void record_optimizer_steps(TrainingState& training, ModuleBase& root,
                            const std::vector<const Optimizer*>& optimizers) {
  training.info.erase(kKey);
  const auto follows = [&](const Optimizer* o) { return o->steps() == training.step; };
  if (std::all_of(optimizers.begin(), optimizers.end(), follows)) return;
  auto steps = nlohmann::ordered_json::object();
  for (const Optimizer* const optimizer : optimizers)
    steps[first_parameter(root, *optimizer)] = optimizer->steps();
  training.info[kKey] = steps.dump();
}

int64_t recorded_optimizer_steps(const TrainingState& training, ModuleBase& root,
                                 const Optimizer& optimizer) {
  const auto found = training.info.find(kKey);
  if (found == training.info.end()) return training.step;
  const auto steps = read_json_or_null(found->second);
  const std::string name = first_parameter(root, optimizer);
  const bool known = steps.is_object() && steps.contains(name) && steps[name].is_number_integer();
  return known ? steps[name].get<int64_t>() : training.step;
}

}  // namespace sherd
