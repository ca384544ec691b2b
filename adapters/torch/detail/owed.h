// Pending backwards of recomputed regions.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <sherd/torch/detail/model.h>

namespace sherd::torch::detail {

/// Units that the first run of a recomputed function has called. The first run records nothing, but each call
/// has a backward when the function runs again: until then it is owed. A unit that is also called elsewhere
/// keeps its gradients open until then, and reduces them with the last call.
class OwedBackwards {
 public:
  OwedBackwards() = default;
  ~OwedBackwards() { give_up(); }
  OwedBackwards(const OwedBackwards&) = delete;
  OwedBackwards& operator=(const OwedBackwards&) = delete;

  /// Notes a call of the unit that ended in the first run. `counted`: its backward is among the due ones.
  void add(std::shared_ptr<UnitUse> unit, uint64_t step, bool counted);
  /// Takes an owed call of the unit in the second run. The call's backward stays among the due ones, and the
  /// caller ends it. Returns false when none is owed.
  bool take(const UnitUse& unit);
  /// Drops the calls that are still owed.
  void give_up() noexcept;

  /// Returns the innermost first run of this thread; null outside.
  static OwedBackwards* first_run();
  static OwedBackwards* second_run();

  /// Puts this thread into the first resp. second run of a function.
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
