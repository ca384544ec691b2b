#include <sherd/kernels/device/device.h>

#include <cstdio>
#include <utility>

namespace sherd {

Device::~Device() {
  if (heard_) return;
  for (const auto& failure : unheard_) {
    if (failure->heard) continue;
    try {
      std::rethrow_exception(failure->cause);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "sherd: an operation of a stream failed without a later wait to report it: %s\n",
                   e.what());
    } catch (...) {
      std::fprintf(stderr, "sherd: an operation of a stream failed without a later wait to report it\n");
    }
    return;
  }
}

void Device::hand_on(std::shared_ptr<StreamFailure> failure) noexcept {
  std::lock_guard lock(unheard_mutex_);
  unheard_.push_back(std::move(failure));
}

void Device::rethrow_unheard() {
  std::lock_guard lock(unheard_mutex_);
  for (const auto& failure : unheard_) {
    if (failure->heard) continue;
    heard();
    failure->rethrow();
  }
}

}  // namespace sherd
