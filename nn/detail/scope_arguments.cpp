#include <sherd/nn/detail/scope_arguments.h>

#include <exception>
#include <utility>

#include <sherd/kernels/copy/copy.h>
#include <sherd/nn/detail/memory.h>

namespace sherd::nn::detail {

ScopeArguments::ScopeArguments(const std::vector<Var*>& values) {
  for (Var* const v : values)
    if (v->requires_grad() && v->numel() > 0) kept_.push_back({v, {}, {}});
  if (!kept_.empty()) device_ = &kept_.front().value->device();
}

ScopeArguments::~ScopeArguments() {
  try {
    wait_for(stored_);
    wait_for(fetched_);
  } catch (const std::exception&) {  // the next call on the failed stream throws it again
  }
}

// Device memory goes back to its allocator, in the order of compute(), by drop() alone: copies need not own it.
void ScopeArguments::store(Streams& streams) {
  for (Kept& k : kept_) {
    k.device = k.value->value();
    k.host = Tensor::in_turn(Place::host, *device_, k.device.shape(), k.device.dtype(),
                             MemoryClass::activation, "offloaded activations");
  }
  streams.out->wait(device_->compute().record());
  for (Kept& k : kept_) ops::copy(*streams.out, k.host.unowned_view(), k.device.unowned_view());
  stored_ = streams.out->record();
}

void ScopeArguments::drop() {
  wait_for(stored_);
  for (Kept& k : kept_) {
    k.device = Tensor();
    k.value->value_ = Tensor();
  }
  dropped_ = true;
}

void ScopeArguments::fetch(Streams& streams) {
  if (!dropped_) return;
  dropped_ = false;
  for (Kept& k : kept_) k.device = like(k.host);
  streams.in->wait(device_->compute().record());  // operations that used the memory before
  for (Kept& k : kept_) {
    ops::copy(*streams.in, k.device.unowned_view(), k.host.unowned_view());
    k.value->value_ = k.device;
  }
  fetched_ = streams.in->record();
}

void ScopeArguments::wait() { wait_for(fetched_); }

void ScopeArguments::wait_for(Event& event) {
  if (event.state()) device_->compute().wait(std::exchange(event, {}));
}

}  // namespace sherd::nn::detail
