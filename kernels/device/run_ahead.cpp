#include <sherd/kernels/device/run_ahead.h>

#include <fmt/format.h>

#include <algorithm>

#include <sherd/base/error.h>

namespace sherd {
namespace {

void raise_to(std::atomic<int64_t>& peak, int64_t value) noexcept {
  int64_t before = peak.load(std::memory_order_relaxed);
  while (before < value && !peak.compare_exchange_weak(before, value, std::memory_order_relaxed)) {
  }
}

int64_t at_least_one(int64_t bound, const char* what, const std::string& label) {
  if (bound >= 1) return bound;
  throw InvalidArgument(fmt::format("{}: {} is {}; use at least 1", label, what, bound));
}

}  // namespace

RunAhead::RunAhead(int64_t most_work, int64_t most_bytes, const std::string& label)
    : most_work_(at_least_one(most_work, "max_queued_work", label)),
      most_bytes_(at_least_one(most_bytes, "max_queued_bytes", label)) {}

int64_t RunAhead::done() const {
  int64_t done = queued();  // before the streams are asked: what is queued meanwhile does not count
  std::lock_guard lock(streams_mutex_);
  for (const auto& oldest : streams_) done = std::min(done, oldest() - 1);
  return done;
}

void RunAhead::take(int64_t bytes) {
  std::unique_lock lock(bytes_mutex_);
  const auto fits = [&] { return bytes_ == 0 || bytes_ + bytes <= most_bytes_; };
  if (!fits()) {
    count_wait();
    room_.wait(lock, fits);
  }
  bytes_ += bytes;
  raise_to(peak_bytes_, bytes_);
}

void RunAhead::give(int64_t bytes) noexcept {
  {
    std::lock_guard lock(bytes_mutex_);
    bytes_ -= bytes;
  }
  room_.notify_all();
}

std::shared_ptr<void> RunAhead::join(std::function<int64_t()> oldest) {
  std::lock_guard lock(streams_mutex_);
  const auto at = streams_.insert(streams_.end(), std::move(oldest));
  return {static_cast<void*>(&*at), [this, at](void*) {
            std::lock_guard removal(streams_mutex_);
            streams_.erase(at);
          }};
}

void RunAhead::note_work(int64_t held) noexcept { raise_to(peak_work_, held); }

}  // namespace sherd
