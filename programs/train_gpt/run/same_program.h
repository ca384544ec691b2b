// Whether the processes of a job are one program: version, build and what chooses kernels.
#pragma once

#include <string>
#include <vector>

#include <sherd/comm/launcher.h>

#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// Facts of a rank that change bits of results or the calls between ranks.
struct ProgramFacts {
  /// Returns those of this rank. Kernels that no feature chooses (--kernels reference) have none; of a GPU its kind
  /// counts, and not the processor's.
  static ProgramFacts of(const sherd::RankContext& rank, const TrainConfig& config);

  std::string version, build;
  /// Kind of GPU, or features of the processor.
  std::string hardware;
  /// sherd::ProcessorFeatures::level; -1: not of a processor.
  int level = -1;
};

/// Compares the facts of all ranks. Collective, and the first one of a job: every version makes the same calls here.
/// @returns what differs and changes bits, a line each with the ranks and the remedy; the same on every rank.
/// @throws sherd::RanksDiffer on every rank for different versions, with the ranks of each.
std::vector<std::string> compare_programs(const sherd::RankContext& rank, const ProgramFacts& own);

}  // namespace train_gpt
