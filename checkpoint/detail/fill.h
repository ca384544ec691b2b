// Filling of a sharded model's tensors from files or host memory. Private to checkpoint/.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/checkpoint/detail/agreement.h>
#include <sherd/checkpoint/detail/stored_codes.h>
#include <sherd/checkpoint/detail/stored_form.h>
#include <sherd/checkpoint/model_state.h>

namespace sherd {

/// Returns what the options request of the root and its optimizers. @throws InvalidArgument, naming `function`, for
/// optimizer state without an optimizer.
std::vector<Wanted> wanted(ModuleBase& root, const std::vector<Optimizer*>& optimizers,
                           const LoadOptions& options, const char* function);

/// Fills one tensor after the other by take(i), and informs the runtime. Where it returns false the tensor is missing:
/// optimizer state restarts from zero, other tensors keep their values. Collective. With `ranks` also when take() fails: every
/// rank throws; without, take() exchanges messages itself, and its error leaves at once.
void fill(ShardRuntime& runtime, Agreement* ranks, const std::vector<Wanted>& all,
          const std::function<bool(size_t)>& take);

/// A tensor of files, null for a missing one, and the box of it that is a box of a wanted one.
struct FilePart {
  const CheckpointTensor* tensor;
  StoredPart part;
  StoredScales scales = {};  // of codes
};
/// Parts that a wanted tensor consists of.
using FileParts = std::vector<FilePart>;

/// Fills each tensor whose parts are all there. On the host a rank holds its piece of one tensor, and of tensors with parts at most
/// 16 MiB or one row more. Adds what the reader knows to the report.
void fill_from_files(ShardRuntime& runtime, Agreement& ranks, const std::vector<Wanted>& all,
                     CheckpointReader& reader, const std::vector<FileParts>& parts, LoadReport& report);

/// Returns whether two tensors of files have the same values in `boxes`, whatever their float types.
bool equal_values(CheckpointReader& reader, const CheckpointTensor& a, const CheckpointTensor& b,
                  std::span<const Box> boxes);

}  // namespace sherd
