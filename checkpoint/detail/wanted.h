// Parameters, buffers and optimizer state to fill from named tensors. Private to checkpoint/.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sherd/checkpoint/format/manifest.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/optim/optimizer.h>

namespace sherd {

/// One of its tensors by the name that it has in files, and this rank's piece.
struct Wanted {
  Section section = Section::model;
  std::string name = {};
  /// Whose values or state it is; undefined of a buffer.
  Parameter param = {};
  /// Of the whole tensor; [1] of one without dimensions.
  Shape shape = {};
  /// The elements of the parameter's shard_range(); the whole of a buffer or counter; those of `owned`.
  Tensor local = {};
  /// A number of updates.
  bool count = false;
  /// State of whole matrices, on their owners.
  std::optional<OwnedState> owned = {};
  /// Further names of the same tensor, under which files have it as well or instead.
  std::vector<std::string> tied = {};

  bool whole() const { return count || !param.defined(); }
  /// Where the elements of `local` lie in the whole tensor, in their order.
  std::vector<Box> boxes() const;
  std::vector<GlobalRun> runs() const;
};

/// Parameters and persistent buffers, then what the optimizers have, in an order that is the same on every rank.
std::vector<Wanted> wanted(ModuleBase& root, bool model, const std::vector<const Optimizer*>& optimizers);

/// What `find`, which returns null for a name that is not there, has under a tensor's names: under the first that is there.
template <class Find>
auto find_by_names(const Wanted& w, Find find) {
  auto* found = find(w.name);
  for (size_t i = 0; found == nullptr && i < w.tied.size(); ++i) found = find(w.tied[i]);
  return found;
}

/// Copies host memory to a tensor in pieces, waiting for each, so that a GPU's pinned staging stays small.
void upload(Stream& stream, const Tensor& to, const void* from);

/// "" when a stored number of updates can be one, else what is wrong.
std::string check_count(float stored);

}  // namespace sherd
