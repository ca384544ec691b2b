#include <sherd/fsdp/slot_plan.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <utility>

namespace sherd {

SlotPlan plan_slots(const std::vector<SlotNeed>& units, int turns) {
  SlotPlan plan;
  std::map<int, int> seen;                  // units of each height so far
  std::map<std::pair<int, int>, int> slot;  // by height and turn
  for (const SlotNeed& unit : units) {
    // Counted for every unit, including those without a slot: the turn depends on the position alone.
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

SlotPlan plan_slots_in_time(const std::vector<SlotSpan>& users) {
  std::vector<size_t> order(users.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // First fit by start time: it needs the fewest slots that overlapping intervals allow.
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return users[a].begin < users[b].begin; });
  SlotPlan plan;
  plan.slot_of.assign(users.size(), -1);
  std::vector<int> busy_until;  // by slot
  for (const size_t u : order) {
    const SlotSpan& user = users[u];
    if (user.elements == 0) continue;
    const auto free =
        std::find_if(busy_until.begin(), busy_until.end(), [&](int end) { return end < user.begin; });
    const auto slot = static_cast<size_t>(free - busy_until.begin());
    if (free == busy_until.end()) {
      busy_until.push_back(0);
      plan.elements.push_back(0);
    }
    busy_until[slot] = user.end;
    plan.elements[slot] = std::max(plan.elements[slot], user.elements);
    plan.slot_of[u] = static_cast<int>(slot);
  }
  return plan;
}

}  // namespace sherd
