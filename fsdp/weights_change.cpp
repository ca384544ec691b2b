#include <sherd/fsdp/weights_change.h>

#include <utility>

#include <sherd/fsdp/runtime.h>

namespace sherd {

WeightsChange::WeightsChange(ShardRuntime& runtime) : runtime_(&runtime) { runtime.begin_change(*this); }

WeightsChange::~WeightsChange() {
  if (runtime_ == nullptr) return;
  try {
    runtime_->end_change(*this, false);
  } catch (...) {  // a stream that failed tells it again to whoever uses it next
  }
}

void WeightsChange::end() {
  if (runtime_ != nullptr) std::exchange(runtime_, nullptr)->end_change(*this, true);
}

}  // namespace sherd
