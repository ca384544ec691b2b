// Comparison of the files that the processes of a job read.
#pragma once

#include <exception>
#include <memory>

#include <sherd/comm/launcher.h>
#include <sherd/train/data/token_windows.h>

#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// Files that a process reads before it has a world.
struct RunInputs {
  TrainConfig config;
  /// Null where nothing is trained or evaluated.
  std::shared_ptr<const sherd::TokenWindows> windows;
  /// Error of the reading. A process of a job keeps it until it can report it to the others.
  std::exception_ptr failure;
};

/// Reads --model's files and opens the data. @throws what fails where all ranks are this process.
RunInputs read_inputs(const TrainConfig& config);

/// check_same_flags(), and a comparison of all files that every rank reads: those of --model, --init-weights, --resume,
/// --tokens, --data and --valid-tokens. What rank 0 alone reads (tokenizer, --export-hf) is not compared. Collective;
/// reads no weights but samples.
/// @throws sherd::RanksDiffer on every rank; RunInputs::failure where every rank has one, or it is not of a file that all
/// ranks read.
void check_same_inputs(const sherd::RankContext& rank, const RunInputs& inputs);

}  // namespace train_gpt
