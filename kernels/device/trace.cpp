#include <sherd/kernels/device/trace.h>

#include <chrono>

namespace sherd {

double Trace::now() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool Trace::reserve() {
  if (used_.fetch_add(1, std::memory_order_relaxed) < limit_) return true;
  used_.fetch_sub(1, std::memory_order_relaxed);
  left_out_.fetch_add(1, std::memory_order_relaxed);
  return false;
}

Trace::Lane& Trace::open(const std::string& device, const std::string& stream) {
  std::lock_guard lock(mutex_);
  return lanes_.emplace_back(device, stream);
}

std::vector<TraceRecord> Trace::records() {
  std::lock_guard lock(mutex_);
  std::vector<TraceRecord> all;
  for (Lane& lane : lanes_) {
    std::lock_guard own(lane.mutex_);
    lane.read_times(true);
    all.insert(all.end(), lane.done_.begin(), lane.done_.end());
  }
  return all;
}

void Trace::Lane::add(Operation what, double begin, double end) {
  std::lock_guard lock(mutex_);
  done_.push_back({device_, stream_, what.name, begin, end, what.kind});
}

void Trace::Lane::add(Operation what, std::shared_ptr<NativeStamp> begin, std::shared_ptr<NativeStamp> end) {
  std::lock_guard lock(mutex_);
  pending_.push_back({what, std::move(begin), std::move(end)});
  if (pending_.size() >= kPending) read_times(false);
}

void Trace::Lane::read_times(bool wait) {
  for (; !pending_.empty() && (wait || pending_.front().end->done()); pending_.pop_front()) {
    const Pending& p = pending_.front();
    done_.push_back(
        {device_, stream_, p.what.name, p.begin->microseconds(), p.end->microseconds(), p.what.kind});
  }
}

}  // namespace sherd
