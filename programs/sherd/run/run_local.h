// The launcher of one host, in place of mpirun: a keeper (run_rank.h) for each rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sherd::tools {

/// Starts `ranks` keepers of the program, as children of this process, which end with it. Rank r has RANK and LOCAL_RANK r,
/// WORLD_SIZE and LOCAL_WORLD_SIZE, TORCHELASTIC_RUN_ID (the start of SHERD_RUN, which also chooses the port of the job's store:
/// comm/bootstrap/bootstrap.h), and SHERD_JOB_SECRET, unless this process has a secret already. SIGUSR1 and kEndRank are passed on
/// to all.
/// @returns when all have ended: the largest of their exit codes.
int start_ranks(int64_t ranks, const std::vector<std::string>& command);

}  // namespace sherd::tools
