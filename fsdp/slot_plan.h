// Plan of shared memory: the units and buckets that use one slot in turn.
#pragma once

#include <cstdint>
#include <vector>

namespace sherd {

/// A unit's need in a pool of buffers.
struct SlotNeed {
  int64_t elements = 0;  // 0: no slot
  /// Levels of wrapped modules inside the unit. Units of one height never contain each other, so units of a
  /// chain are used one after another.
  int height = 0;
  /// true: it uses slots in turn with the other units of its height; false: the slot is the unit's own
  bool shares = true;
};

struct SlotPlan {
  std::vector<int> slot_of;       // by unit, or user; -1: none
  std::vector<int64_t> elements;  // by slot
};

/// Plans slots: the i-th unit of each height has slot i mod `turns` of that height. A slot is as large as the
/// largest need of its units, so a unit always has the same addresses. Example: four units of 10, 30, 20 and
/// 10 elements and of height 0 in two turns have slots 0, 1, 0, 1 of 20 and 30 elements.
SlotPlan plan_slots(const std::vector<SlotNeed>& units, int turns);

/// Use of a buffer for an interval that is known beforehand.
struct SlotSpan {
  int64_t elements = 0;    // 0: no slot
  int begin = 0, end = 0;  // both included, on a clock of the caller
};

/// Plans slots by time: each user has the first slot that is free at its start, in the order given among
/// equal starts. A slot is as large as the largest need of its users. Example: users of [0, 1], [1, 2] and
/// [2, 3] have slots 0, 1, 0.
SlotPlan plan_slots_in_time(const std::vector<SlotSpan>& users);

}  // namespace sherd
