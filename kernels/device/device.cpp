#include <sherd/kernels/device/device.h>

#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include <sherd/base/error.h>

namespace sherd {

Device::Device(const DeviceOptions& options)
    : run_ahead_(options.max_queued_work, options.max_queued_bytes, options.label) {
  name_of(options.kernels);
  name_of(options.symmetric_products);
  name_of(options.attention);
}

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

void Device::refuse_kernels(const char* family) const {
  throw NotSupported(fmt::format(
      "{}: the operations '{}' have no kernels for {}; add them to the family's table, or use another device",
      label(), family, describe()));
}

void Device::issue_in_order(bool on) {
  issue_in_order_.store(on, std::memory_order_relaxed);
  if (on && kind() == DeviceKind::cuda) streams_.wait_issued();
}

bool Device::first_use(const std::vector<int64_t>& shape) {
  if (kind() != DeviceKind::cuda) return false;
  std::lock_guard lock(used_mutex_);
  return used_.insert(shape).second;
}

void Device::wait_for_tier_reads(Stream& stream) {
  if (const uint64_t newest = tier_reads_.newest(); newest > 0)
    stream.submit({"offload wait", WorkKind::copy},
                  [this, newest](ExecutionContext&) { tier_reads_.wait(newest); });
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
