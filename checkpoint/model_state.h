// Sharded model and optimizer as named tensors, for saving and loading.
#pragma once

#include <string>
#include <vector>

#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/checkpoint/save_plan.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/optim/optimizer.h>

namespace sherd {

/// Entry of TrainingState::info: ShardRuntime::noise_seed() of a run with weights, state or gradients in bf16. A load of optimizer
/// state continues it.
inline constexpr const char* kNoiseSeed = "noise.seed";

/// Returns the tensors that this rank writes, in the dtypes they rest in. Exactly one rank writes each element of every parameter
/// (master weights, including frozen ones; the halves of the form split are one f32 tensor) and of every state tensor. Ranks that hold the same elements
/// (replicas, data-parallel ranks under no_shard, tensor-parallel ranks of an uncut parameter) share them
/// evenly by bytes. World rank 0's values are written of persistent buffers and of ignored parameters, which
/// may differ between ranks. A tied tensor is written under each of its names. Linear in the local pieces;
/// collective only where a mesh has no communicator for a list of dimensions yet. `optimizer` may be null.
/// The tensors refer to the model and the optimizers, which outlive them. A save records Optimizer::steps(),
/// and fails where ShardRuntime::require_whole_weights() throws.
[[nodiscard]] std::vector<LocalTensor> checkpoint_tensors(ModuleBase& root, const Optimizer* optimizer);
/// Returns the tensors of a root with several optimizers, with all of their states. The tensors do not record
/// which optimizer a state belongs to.
/// @throws InvalidArgument unless these are all optimizers of the root, or none, since state would be lost
/// silently.
[[nodiscard]] std::vector<LocalTensor> checkpoint_tensors(ModuleBase& root,
                                                          const std::vector<const Optimizer*>& optimizers);

struct LoadOptions {
  bool model = true;
  bool optimizer = true;
  /// Instead of an error, optimizer state that the checkpoint lacks starts from zero, and unused state is
  /// left out; for changed routing.
  bool allow_new_state = false;
  /// Convert weights and state that the checkpoint has in another form (FullyShardOptions::master, OptimizerOptions::state_dtype):
  /// to bf16 and 8 bits by rounding to nearest; counts of updates that only one form has start from zero. Without it a load of both model and
  /// optimizer is refused. A load of the model alone always converts. f32 and split have one form in files.
  bool convert_forms = false;
  /// The same for changed models: parameters and buffers that the checkpoint lacks keep their present values,
  /// and tensors that are not part of the model are left out, whatever their dtype.
  bool allow_missing = false;
  bool allow_unexpected = false;
  /// Fill the weights with the checkpoint's averages of them (OptimizerOptions::ema_decay), but parameters that it has none of:
  /// frozen ones. For loads of checkpoints without the optimizer. InvalidArgument where it has no averages at all.
  bool averages = false;
  /// Compare the ranks' copies of the files before any data is read (weights_copies(),
  /// require_same_copies()). False: the program has compared them, or its ranks are to load different
  /// weights.
  bool compare_copies = true;
  /// The caller's explanation for a checkpoint that does not fit; the message begins with it.
  std::string cause = {};
};

struct LoadReport {
  TrainingState training;
  ReadCounts counts;  // of this rank
  /// With allow_new_state: parameters whose state restarted from zero, and state tensors that were left out.
  std::vector<std::string> started_anew, left_out;
  /// Averages of weights that the source lacks (OptimizerOptions::ema_decay): they restarted from the weights.
  std::vector<std::string> averages_restarted;
  /// With allow_missing and allow_unexpected: parameters and buffers that kept their values, and tensors of
  /// the checkpoint's model that were left out.
  std::vector<std::string> missing, unexpected;
  /// With convert_forms: what was converted, in words.
  std::vector<std::string> converted;
  /// Tensors in files of other programs that were not read because they are copies or unused (StoredForms:
  /// recomputed buffers, a tied head).
  std::vector<std::string> ignored;
  /// Manifest::notes of the files, for a program to print once.
  std::vector<std::string> notes;
};

/// Fills the local pieces of a model and its optimizer from a reader that this rank alone uses. Each rank
/// reads only what it holds, and all of every persistent buffer. A load of the model alone converts f32, bf16 and f16 to the
/// run's form.
///
/// Collective over the root's mesh, also when it fails: every rank then throws the same error, and model and
/// optimizer hold a mixture that another load may replace. Names and shapes are checked before any data is
/// read.
/// @throws InvalidArgument listing *all* missing, unexpected and mismatching names, and explaining a change
/// of routing; RanksDiffer where the ranks have different copies (LoadOptions::compare_copies);
/// CorruptCheckpoint, IoError from the reader.
/// @param optimizer null when options.optimizer is false.
LoadReport load_checkpoint(CheckpointReader& reader, ModuleBase& root, Optimizer* optimizer,
                           const LoadOptions& options = {});
/// Fills all optimizers of the root together. The step count of each (Optimizer::steps()) continues from the
/// checkpoint's record (recorded_optimizer_steps()).
LoadReport load_checkpoint(CheckpointReader& reader, ModuleBase& root,
                           const std::vector<Optimizer*>& optimizers, const LoadOptions& options = {});

}  // namespace sherd
