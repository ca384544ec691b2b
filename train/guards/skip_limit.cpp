#include <sherd/train/guards/skip_limit.h>

#include <fmt/format.h>

namespace sherd {

bool SkipLimit::count(int64_t step, int64_t skipped_steps) {
  const bool skipped = skipped_steps > skipped_;
  step_ = step;
  skipped_ = skipped_steps;
  in_a_row_ = skipped ? in_a_row_ + 1 : 0;
  return skipped;
}

std::string SkipLimit::reached() const {
  if (most_ == 0 || in_a_row_ < most_) return "";
  return fmt::format(
      "the gradients of {} consecutive step{}, up to step {}, were not finite: as many as "
      "--max-skipped-steps "
      "allows. The weights are still those after step {}; resume from a checkpoint with a lower --lr or "
      "other "
      "data, or look for what makes the loss inf or NaN",
      in_a_row_, in_a_row_ == 1 ? "" : "s", step_, step_ - in_a_row_);
}

}  // namespace sherd
