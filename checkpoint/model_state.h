// Sharded model and optimizer as named tensors, for saving and loading.
#pragma once

#include <string>
#include <vector>

#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/checkpoint/save_plan.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/optim/optimizer.h>

namespace sherd {

/// What this rank writes: of every parameter (f32 master weights, frozen ones too) and of every state tensor
/// each element by exactly one rank; of persistent buffers, which may differ from rank to rank, world rank 0's.
/// Ranks that hold the same elements (replicas, data-parallel ranks under no_shard, tensor-parallel ranks of a whole parameter) share them evenly by bytes. Of ignored parameters,
/// which may differ from rank to rank, world rank 0's are taken. What is tied is there under each of its names. Linear in the local pieces; collective only
/// where a mesh has no communicator for a list of dimensions yet. `optimizer` may be null.
/// The tensors refer to the model and the optimizers, which outlive them. A save records Optimizer::steps(), and fails
/// where ShardRuntime::require_whole_weights() throws.
std::vector<LocalTensor> checkpoint_tensors(ModuleBase& root, const Optimizer* optimizer);
/// The same of a root with several optimizers: all of their states. Which of them a state belongs to leaves no trace.
/// @throws InvalidArgument unless these are all optimizers of the root, or none: state would be lost silently.
std::vector<LocalTensor> checkpoint_tensors(ModuleBase& root, const std::vector<const Optimizer*>& optimizers);

struct LoadOptions {
  bool model = true;
  bool optimizer = true;
  /// Optimizer state that the checkpoint lacks starts from zero, and state that nobody wants is left out,
  /// instead of an error: for routing that changed.
  bool allow_new_state = false;
  /// The same of the model, for models that changed: parameters and buffers that the checkpoint lacks keep the values
  /// that they have (initial ones, say), and tensors that are not part of the model are left out, of whatever dtype.
  bool allow_missing = false;
  bool allow_unexpected = false;
  /// Whether the ranks' copies of the files are compared before any data is read (weights_copies(),
  /// require_same_copies()). False: for a program that has compared them, or whose ranks are to load different weights.
  bool compare_copies = true;
  /// What the caller knows of the reason when the checkpoint does not fit: comes first in the message.
  std::string cause = {};
};

struct LoadReport {
  TrainingState training;
  ReadCounts counts;  // of this rank
  /// With allow_new_state: parameters whose state started anew, and state tensors that were left out.
  std::vector<std::string> started_anew, left_out;
  /// With allow_missing and allow_unexpected: parameters and buffers that kept their values, and tensors of the
  /// checkpoint's model that were left out.
  std::vector<std::string> missing, unexpected;
  /// Tensors of files of other programs that were not read because they repeat or belong to none (StoredForms: buffers
  /// that are made anew, a tied head).
  std::vector<std::string> ignored;
};

/// Fills the local pieces of a model and its optimizer from a reader that this rank alone uses, each rank
/// reading only what it holds, and all of every persistent buffer. Wider dtypes than the stored one are converted
/// (bf16 and f16 to f32, exactly).
///
/// Collective over the root's mesh, also when it fails: then every rank throws the same error, and model and
/// optimizer hold a mixture that another load may replace. The names and shapes are checked before any data
/// is read.
/// @throws InvalidArgument listing *all* missing, unexpected and mismatching names, and explaining a change
/// of routing; RanksDiffer where the ranks have different copies (LoadOptions::compare_copies); CorruptCheckpoint, IoError
/// from the reader.
/// @param optimizer null when options.optimizer is false.
LoadReport load_checkpoint(CheckpointReader& reader, ModuleBase& root, Optimizer* optimizer,
                           const LoadOptions& options = {});
/// The same for all optimizers of the root together. Each of them goes on counting (Optimizer::steps()) from what
/// the checkpoint has of it (recorded_optimizer_steps()).
LoadReport load_checkpoint(CheckpointReader& reader, ModuleBase& root, const std::vector<Optimizer*>& optimizers,
                           const LoadOptions& options = {});

}  // namespace sherd
