// Metrics of a run as a TensorBoard event file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <sherd/train/report/step_result.h>
#include <sherd/train/saving/append_file.h>

namespace sherd {

/// Writes a file of its own in a folder (TensorBoard calls the folder a run):
/// events.out.tfevents.SECONDS.HOST.PROCESS.COUNT. Frames are those of TFRecord files: length (u64), its masked
/// CRC-32C, the bytes, their CRC-32C; all little-endian. A frame holds a message of event.proto. Scalars have
/// the names of metrics.h; non-finite values are written, too. Numbers are f32, as in all such files:
/// --metrics has every digit.
class EventWriter {
 public:
  /// Makes the folder and missing ones above it, and a new file in it. Its session starts with step `first` +
  /// 1: readers drop that step and later ones of earlier files, both of the run that this one resumes and of
  /// other runs.
  /// @throws IoError.
  EventWriter(const std::filesystem::path& folder, int64_t first);

  /// Writes the figures of a step. They are handed to the system on return, unless failure() says otherwise
  /// (AppendFile).
  void write(const StepResult& step);
  /// Writes eval_loss, eval_ppl and eval_sets/NAME of a model that was only evaluated.
  void write_evaluation(int64_t step, double loss, const SetLosses& sets = {});
  void flush() { file_.flush(); }
  /// Returns why events are missing in the file, and how many; empty when it has all.
  std::string failure() const { return file_.failure(); }
  const std::string& path() const { return file_.path(); }

 private:
  using Scalar = std::pair<std::string, double>;
  void write_scalars(int64_t step, std::span<const Scalar> scalars);

  AppendFile file_;
};

}  // namespace sherd
