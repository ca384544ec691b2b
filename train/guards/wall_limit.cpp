#include <sherd/train/guards/wall_limit.h>

#include <algorithm>

namespace sherd {

WallLimit::WallLimit(double limit) : limit_(limit), save_(std::min(limit / 20, 60.0)), latest_(limit) {
  update();
}

void WallLimit::step_took(double seconds) {
  if (!warm_) {
    warm_ = true;
    first_step_ = seconds;
  } else {
    steps_.push_back(seconds);
    if (steps_.size() > kSteps) steps_.pop_front();
  }
  update();
}

void WallLimit::save_took(double seconds) {
  save_ = measured_ ? std::max(save_, seconds) : seconds;
  measured_ = true;
  update();
}

void WallLimit::update() {
  const double step = steps_.empty() ? first_step_ : *std::max_element(steps_.begin(), steps_.end());
  latest_.store(limit_ - 2 * step - 1.5 * save_, std::memory_order_relaxed);
}

}  // namespace sherd
