#include <sherd/fsdp/weights_change.h>

#include <utility>

#include <sherd/fsdp/runtime.h>

namespace sherd {

WeightsChange::WeightsChange(ShardRuntime& runtime, UpdateSet* set) : runtime_(&runtime), set_(set) {
  runtime.begin_change(*this, set);
}

WeightsChange::~WeightsChange() {
  if (runtime_ == nullptr) return;
  // An update that began on this rank may be complete on others: only a checkpoint makes the ranks equal.
  if (in_update_) runtime_->weights_torn();
  try {
    runtime_->end_change(*this, set_, false);
  } catch (...) {  // the next call on a failed stream throws again
  }
}

void WeightsChange::end() {
  if (runtime_ != nullptr) std::exchange(runtime_, nullptr)->end_change(*this, set_, true);
}

}  // namespace sherd
