// Plan of shared memory: the units and buckets that use one slot in turn.
#pragma once

#include <cstdint>
#include <vector>

namespace sherd {

/// What a unit needs of a pool of buffers.
struct SlotNeed {
  int64_t elements = 0;  // 0: no slot
  /// Levels of wrapped modules inside the unit. Units of one height are never inside one another, so that
  /// those of a chain are used one after another.
  int height = 0;
  /// In turn with the other units of its height; else the slot is the unit's own.
  bool shares = true;
};

struct SlotPlan {
  std::vector<int> slot_of;       // by unit, or user; -1: none
  std::vector<int64_t> elements;  // by slot
};

/// The i-th unit of each height has slot i mod `turns` of that height, as large as the largest of its units
/// needs. So a unit always has the same addresses. For example, four units of 10, 30, 20 and 10 elements and
/// of height 0 in two turns have slots 0, 1, 0, 1 of 20 and 30 elements.
SlotPlan plan_slots(const std::vector<SlotNeed>& units, int turns);

/// What uses a buffer for a while that is known beforehand.
struct SlotSpan {
  int64_t elements = 0;    // 0: no slot
  int begin = 0, end = 0;  // both included, on a clock of the caller
};

/// Each user has the first slot that is free at its begin, in the order given among equal begins; a slot is as large as
/// the largest of its users needs. For example, three users of [0, 1], [1, 2] and [2, 3] have slots 0, 1, 0.
SlotPlan plan_slots_in_time(const std::vector<SlotSpan>& users);

}  // namespace sherd
