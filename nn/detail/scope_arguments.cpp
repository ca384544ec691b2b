#include <sherd/nn/detail/scope_arguments.h>

#include <exception>
#include <utility>

#include <sherd/kernels/copy/copy.h>
#include <sherd/nn/detail/memory.h>

namespace sherd::nn::detail {

ArgumentStreams::Pair& ArgumentStreams::of(Device& device) {
  Pair& pair = pairs_[&device];
  if (!pair.out) pair = {device.make_stream("activations out"), device.make_stream("activations in")};
  return pair;
}

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
void ScopeArguments::store(ArgumentStreams& streams) {
  Stream& out = *streams.of(*device_).out;
  for (Kept& k : kept_) {
    k.device = k.value->value();
    k.host = Tensor::in_turn(Place::host, *device_, k.device.shape(), k.device.dtype(),
                             MemoryClass::activation, "offloaded activations");
  }
  out.wait(device_->compute().record());
  for (Kept& k : kept_) ops::copy(out, k.host.unowned_view(), k.device.unowned_view());
  stored_ = out.record();
}

void ScopeArguments::drop() {
  wait_for(stored_);
  for (Kept& k : kept_) {
    k.device = Tensor();
    k.value->value_ = Tensor();
  }
  dropped_ = true;
}

void ScopeArguments::fetch(ArgumentStreams& streams) {
  if (!dropped_) return;
  Stream& in = *streams.of(*device_).in;
  dropped_ = false;
  for (Kept& k : kept_) k.device = like(k.host);
  in.wait(device_->compute().record());  // operations that used the memory before
  for (Kept& k : kept_) {
    ops::copy(in, k.device.unowned_view(), k.host.unowned_view());
    k.value->value_ = k.device;
  }
  fetched_ = in.record();
}

void ScopeArguments::wait() { wait_for(fetched_); }

void ScopeArguments::wait_for(Event& event) {
  if (event.state()) device_->compute().wait(std::exchange(event, {}));
}

}  // namespace sherd::nn::detail
