// `sherd ckpt diff`: two checkpoints, tensor by tensor, however each is cut into pieces.
#pragma once

#include <filesystem>
#include <optional>

#include "console.h"

namespace sherd::tools {

struct DiffOptions {
  std::filesystem::path a, b;
  bool model = true, optim = true;
  bool json = false;
  /// Relative; with it, dtypes may differ and -0 is 0. Without it, every bit counts.
  std::optional<double> tolerance;
};

/// Prints what differs. @returns whether the two are identical, or within the tolerance: names, shapes and
/// elements; training state is shown and does not count. Holds a few MiB of each.
/// @throws InvalidArgument when neither holds a tensor that was asked for.
bool diff(const DiffOptions& options, const Console& console);

extern const char* const kDiffJsonHelp;

}  // namespace sherd::tools
