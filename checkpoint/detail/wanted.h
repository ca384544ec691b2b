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
  /// Parameter of the values or state; undefined for a buffer.
  Parameter param = {};
  /// Shape of the unsharded tensor; [1] for one without dimensions.
  Shape shape = {};
  /// Elements of the parameter's shard_range(); all of a buffer or counter; those of `owned`.
  Tensor local = {};
  /// Low halves of weights in the form split (Parameter::shard_low()).
  Tensor low = {};
  /// A number of updates.
  bool count = false;
  /// Average of weights, which restarts from them where it is missing (StateTensor::averages_weights).
  bool averages_weights = false;
  /// State of whole matrices, on their owners.
  std::optional<OwnedState> owned = {};
  /// Further names of the same tensor, under which files have it as well or instead.
  std::vector<std::string> tied = {};
  /// Form of `local` where it is codes of 8 bits.
  RestState rest = {};

  bool whole() const { return count || !param.defined(); }
  /// Returns whether it is a weight or a state of it, whose stored form may be another float type.
  bool rests() const { return param.defined() && !count; }
  /// Returns the dtype of its values in files.
  DType dtype() const { return low.defined() ? DType::f32 : local.dtype(); }
  /// Returns its values in that dtype, f32 of codes; as f32 of what rests(). A copy on the stream where they are stored otherwise.
  Tensor values(Stream& stream) const;
  Tensor f32_values(Stream& stream) const;
  /// Queues the storage of values of `from`, f32 of what rests(), as elements from `at` on, rounded to nearest; of whole blocks.
  void store(Stream& stream, int64_t at, const Tensor& from) const;
  /// Returns the boxes of the elements of `local` in the unsharded tensor, in their order.
  std::vector<Box> boxes() const;
  std::vector<GlobalRun> runs() const;

 private:
  /// Returns codes from `begin` on, with as many values. @pre rest.quantized()
  BlockSegment segment_of(int64_t begin, const Tensor& values) const;
};

/// Returns parameters and persistent buffers, then the optimizers' state, in the same order on every rank.
std::vector<Wanted> wanted(ModuleBase& root, bool model, const std::vector<const Optimizer*>& optimizers);

/// Returns find(name) for the first of a tensor's names that `find` has. `find` returns null for a missing
/// name.
template <class Find>
auto find_by_names(const Wanted& w, Find find) {
  auto* found = find(w.name);
  for (size_t i = 0; found == nullptr && i < w.tied.size(); ++i) found = find(w.tied[i]);
  return found;
}

/// Stores values in host memory, f32 of what rests(), in pieces, waiting for each, so that a GPU's pinned staging stays small.
void upload(Stream& stream, const Wanted& to, const void* from);

/// Returns "" for a valid stored count of updates, else the error.
std::string check_count(float stored);

}  // namespace sherd
