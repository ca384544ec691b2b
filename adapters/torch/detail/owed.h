// Pending backwards of recomputed regions.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <sherd/torch/detail/model.h>

namespace sherd::torch::detail {

/// Units that the first run of a recomputed function has called. Nothing is recorded then, and yet each call has a
/// backward coming: when the function runs again. Until then it is owed, so that a unit which is called elsewhere, too,
/// keeps its gradients open for it, and reduces them with the last.
class OwedBackwards {
 public:
  OwedBackwards() = default;
  ~OwedBackwards() { give_up(); }
  OwedBackwards(const OwedBackwards&) = delete;
  OwedBackwards& operator=(const OwedBackwards&) = delete;

  /// A call of the unit has ended in the first run. `counted`: its backward is among those that are due.
  void add(std::shared_ptr<UnitUse> unit, uint64_t step, bool counted);
  /// The second run has come to a call of the unit, whose backward is its own business from now on, though still
  /// among those that are due. False when none is owed.
  bool take(const UnitUse& unit);
  /// What is left will not come.
  void give_up() noexcept;

  /// The run that this thread is in, innermost; null outside.
  static OwedBackwards* first_run();
  static OwedBackwards* second_run();

  /// This thread is in the first resp. second run of a function.
  class Run {
   public:
    Run(OwedBackwards* first, OwedBackwards* second);
    ~Run();
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

   private:
    OwedBackwards *first_before_, *second_before_;
  };

 private:
  struct Owed {
    std::shared_ptr<UnitUse> unit;
    uint64_t step = 0;
  };
  std::vector<Owed> owed_;
};

}  // namespace sherd::torch::detail
