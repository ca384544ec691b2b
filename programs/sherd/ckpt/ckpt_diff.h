// `sherd ckpt diff`: comparison of two checkpoints, tensor by tensor, whatever their pieces are.
#pragma once

#include <filesystem>
#include <optional>

#include "console.h"

namespace sherd::tools {

struct DiffOptions {
  std::filesystem::path a, b;
  bool model = true, optim = true;
  bool json = false;
  /// Relative tolerance; with it, dtypes may differ and -0 is 0. Without it, every bit counts.
  std::optional<double> tolerance;
};

/// Prints the differences. @returns whether the two are identical, or within the tolerance: names, shapes and
/// elements; training state is shown and does not count. Holds a few MiB of each.
/// @throws InvalidArgument when neither holds a tensor that was asked for.
bool diff(const DiffOptions& options, const Console& console);

extern const char* const kDiffJsonHelp;

}  // namespace sherd::tools
