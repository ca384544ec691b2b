#include <sherd/fsdp/slot_plan.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

namespace sherd {

SlotPlan plan_slots(const std::vector<SlotNeed>& units, int turns) {
  SlotPlan plan;
  std::map<int, int> seen;                  // units of each height so far
  std::map<std::pair<int, int>, int> slot;  // by height and turn
  for (const SlotNeed& unit : units) {
    const int turn = seen[unit.height]++ % turns;
    int at = -1;
    if (unit.elements > 0) {
      at = static_cast<int>(plan.elements.size());
      if (unit.shares) at = slot.try_emplace({unit.height, turn}, at).first->second;
      if (at == static_cast<int>(plan.elements.size())) plan.elements.push_back(0);
      int64_t& size = plan.elements[static_cast<size_t>(at)];
      size = std::max(size, unit.elements);
    }
    plan.slot_of.push_back(at);
  }
  return plan;
}

}  // namespace sherd
