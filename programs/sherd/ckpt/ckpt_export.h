// `sherd ckpt export`: whole tensors in safetensors files for other programs.
#pragma once

#include <filesystem>
#include <optional>

#include <sherd/kernels/device/dtype.h>

#include "console.h"

namespace sherd::tools {

/// Default size of files of Hugging Face's writers.
constexpr int64_t kDefaultShardBytes = 5'000'000'000;

struct ExportOptions {
  std::filesystem::path source;
  /// One file; a new or empty folder, as Hugging Face tools read it, where it ends in a slash (see
  /// sherd::export_weights()).
  std::filesystem::path out;
  /// f32, bf16 or f16 for the floats of the model; absent = as stored. Optimizer state is never converted.
  std::optional<DType> dtype;
  /// Maximum data of a file in a folder, unless one tensor is larger.
  int64_t max_shard_bytes = kDefaultShardBytes;
  bool optim = false;
  /// The averages of weights in the place of the weights that have one (OptimizerOptions::ema_decay).
  bool averages = false;
};

/// Exports the tensors. Holds a few MiB of data. A file appears under its name complete, or not at all, and
/// replaces an existing file. @throws InvalidArgument also for a finite value that `dtype` cannot hold;
/// CorruptCheckpoint, IoError.
void export_tensors(const ExportOptions& options, const Console& console);

}  // namespace sherd::tools
