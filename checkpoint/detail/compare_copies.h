// Comparison of file copies over an Agreement. Private to checkpoint/.
#pragma once

#include <functional>
#include <vector>

#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/checkpoint/detail/agreement.h>
#include <sherd/checkpoint/file_copies.h>

namespace sherd {

/// require_same_copies() by `ranks`.
void compare_copies(Agreement& ranks, std::vector<FileCopy> mine);

/// Returns the result of `open`, on every rank, after a comparison of the files that all have opened
/// (`compare`).
/// @throws what it throws on the first such rank, on all; the text names that rank unless all fail. RanksDiffer.
CheckpointReader open_alike(Agreement& ranks, bool compare, const std::function<CheckpointReader()>& open);

}  // namespace sherd
