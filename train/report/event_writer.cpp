#include <sherd/train/report/event_writer.h>

#include <chrono>
#include <cmath>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include <sherd/base/error.h>
#include <sherd/train/report/detail/crc32c.h>

#include "event.pb.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

template <class T>
std::string little_endian(T value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(T); ++i) bytes.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
  return bytes;
}

std::string frame(const event::Event& message) {
  const std::string data = message.SerializeAsString();
  const std::string length = little_endian<uint64_t>(data.size());
  return length + little_endian(detail::masked_crc32c(length)) + data +
         little_endian(detail::masked_crc32c(data));
}

/// A name that no file in the folder has. Readers take files in the order of their names, which begin with
/// the time.
std::string new_file(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw IoError(fmt::format("cannot make the folder '{}': {}", folder.string(), error.message()));
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  const auto seconds = static_cast<int64_t>(now());
  for (int i = 0;; ++i) {
    const fs::path path =
        folder / fmt::format("events.out.tfevents.{:010}.{}.{}.{}", seconds, host, ::getpid(), i);
    if (!fs::exists(path, error)) return path.string();
  }
}

}  // namespace

EventWriter::EventWriter(const fs::path& folder, int64_t first)
    : file_(new_file(folder), "events", "event", true) {
  event::Event version;
  version.set_wall_time(now());
  version.set_file_version("brain.Event:2");
  event::Event start;
  start.set_wall_time(now());
  start.set_step(first + 1);
  start.mutable_session_log()->set_status(event::SessionLog::START);
  file_.write_head(frame(version) + frame(start));
}

void EventWriter::write(const StepResult& s) {
  std::vector<Scalar> scalars = {{"loss", s.loss},
                                 {"lr", s.lr},
                                 {"grad_norm", s.grad_norm},
                                 {"num_zeros", static_cast<double>(s.num_zeros)},
                                 {"skipped_steps", static_cast<double>(s.skipped_steps)},
                                 {"tokens_per_s", s.tokens_per_s},
                                 {"step_ms", s.step_ms},
                                 {"optim_ms", s.optim_ms},
                                 {"peak_bytes", static_cast<double>(s.peak_bytes)}};
  if (s.mtp_loss) scalars.emplace_back("mtp_loss", *s.mtp_loss);
  if (s.flops_per_s) scalars.emplace_back("flops_per_s", *s.flops_per_s);
  if (s.mfu) scalars.emplace_back("mfu", *s.mfu);
  if (s.product_share) scalars.emplace_back("product_share", *s.product_share);
  if (s.eval_ms) scalars.emplace_back("eval_ms", *s.eval_ms);
  if (s.save_ms) scalars.emplace_back("save_ms", *s.save_ms);
  if (s.eval_loss)
    scalars.insert(scalars.end(), {{"eval_loss", *s.eval_loss}, {"eval_ppl", std::exp(*s.eval_loss)}});
  if (s.eval_loss_ema) scalars.emplace_back("eval_loss_ema", *s.eval_loss_ema);
  for (const auto& [name, loss] : s.eval_sets) scalars.emplace_back("eval_sets/" + name, loss);
  write_scalars(s.step, scalars);
}

void EventWriter::write_evaluation(int64_t step, double loss, const SetLosses& sets) {
  std::vector<Scalar> scalars = {{"eval_loss", loss}, {"eval_ppl", std::exp(loss)}};
  for (const auto& [name, of_set] : sets) scalars.emplace_back("eval_sets/" + name, of_set);
  write_scalars(step, scalars);
}

void EventWriter::write_scalars(int64_t step, std::span<const Scalar> scalars) {
  event::Event message;
  message.set_wall_time(now());
  message.set_step(step);
  for (const auto& [tag, value] : scalars) {
    event::Scalar* const scalar = message.mutable_summary()->add_value();
    scalar->set_tag(tag);
    scalar->set_simple_value(static_cast<float>(value));
  }
  file_.write(frame(message));
}

}  // namespace sherd
