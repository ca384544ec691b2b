// Comparison of the ranks' copies of files that every rank reads.
#pragma once

#include <vector>

#include <sherd/checkpoint/file_copies.h>
#include <sherd/comm/core/communicator.h>

namespace sherd {

/// Compares names and digests over all ranks, with one all-gather of a digest where they are equal. Files
/// that no rank can read count as equal; opening them throws the cause. Collective; blocks the host; waits
/// for ranks that still read files.
/// @throws RanksDiffer on every rank with the same text: the files, the odd ranks, both digests, unreadable
/// files. ranks() has every rank where no digest is the most frequent one.
void require_same_copies(Communicator& ranks, const std::vector<FileCopy>& mine);

}  // namespace sherd
