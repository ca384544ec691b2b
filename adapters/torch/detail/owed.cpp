#include <sherd/torch/detail/owed.h>

#include <algorithm>
#include <utility>

namespace sherd::torch::detail {
namespace {

struct RunsOfThread {
  OwedBackwards* first = nullptr;
  OwedBackwards* second = nullptr;
};

// Thread-local, since autograd runs the functions and passes nothing to the calls inside of them.
RunsOfThread& runs_of_thread() {
  static thread_local RunsOfThread runs;
  return runs;
}

}  // namespace

void OwedBackwards::add(std::shared_ptr<UnitUse> unit, uint64_t step, bool counted) {
  if (!counted) ++unit->due;
  owed_.push_back({std::move(unit), step});
}

bool OwedBackwards::take(const UnitUse& unit) {
  const auto found = std::find_if(owed_.begin(), owed_.end(), [&](const Owed& o) {
    const auto model = o.unit->model();
    return o.unit.get() == &unit && model && model->step() == o.step;
  });
  if (found == owed_.end()) return false;
  owed_.erase(found);
  return true;
}

void OwedBackwards::give_up() noexcept {
  for (const Owed& o : std::exchange(owed_, {})) {
    try {
      const auto model = o.unit->model();
      if (!model || model->step() != o.step) continue;
      --o.unit->due;
      o.unit->unit().drop_backward();
    } catch (...) {  // the model no longer exists
    }
  }
}

OwedBackwards* OwedBackwards::first_run() { return runs_of_thread().first; }
OwedBackwards* OwedBackwards::second_run() { return runs_of_thread().second; }

OwedBackwards::Run::Run(OwedBackwards* first, OwedBackwards* second)
    : first_before_(std::exchange(runs_of_thread().first, first)),
      second_before_(std::exchange(runs_of_thread().second, second)) {}

OwedBackwards::Run::~Run() { runs_of_thread() = {first_before_, second_before_}; }

}  // namespace sherd::torch::detail
