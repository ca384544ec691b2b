#include "saving.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <filesystem>
#include <system_error>

#include <sherd/checkpoint/checkpoint_folder.h>

namespace train_gpt {

Saving::Saving(Trainer& trainer, const TrainConfig& config) : trainer_(trainer), config_(config) {
  if (config.save.empty()) return;
  saver_.emplace(trainer.world(), trainer.checkpoint_tensors(),
                 sherd::SaverOptions{.folder = config.save, .keep = config.keep, .async = config.async_save});
}

void Saving::after_step(StepResult& result) {
  if (!saver_) return;
  saver_->poll();
  const bool last = result.step == config_.last_step();
  due_ = due_ || last || (config_.save_every > 0 && result.step % config_.save_every == 0);
  if (!due_ || (!last && !saver_->idle())) return;
  const auto start = std::chrono::steady_clock::now();
  saver_->save(trainer_.training_state());
  if (last) saver_->wait();
  result.save_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  due_ = false;
}

void Saving::save_now() {
  if (!saver_) return;
  std::error_code missing;  // equivalent() of a folder that is not there yet
  const auto target = std::filesystem::path(config_.save) / sherd::checkpoint_name(trainer_.step());
  if (trainer_.resumed() && std::filesystem::equivalent(trainer_.resumed()->path, target, missing)) return;
  saver_->save(trainer_.training_state());
  saver_->wait();
}

std::vector<std::string> Saving::take_lines() {
  std::vector<std::string> lines;
  if (!saver_) return lines;
  for (const sherd::SaveReport& r : saver_->take_reports()) {
    lines.push_back(fmt::format("saved {}: {:.1f} MiB in {:.2f} s, training waited {:.0f} ms",
                                r.committed.string(), static_cast<double>(r.bytes) / (1 << 20), r.seconds,
                                r.blocked * 1e3));
    if (!r.removed.empty()) lines.back() += fmt::format("; removed {}", fmt::join(r.removed, ", "));
  }
  return lines;
}

}  // namespace train_gpt
