// Start of the ranks of the suites that every backend passes: with the local backend in test_comm, over the
// imitated NCCL in test_comm_nccl, as threads of the processes that mpirun starts in test_comm_mpi.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sherd/comm/bootstrap/store.h>
#include <sherd/comm/launcher.h>

namespace sherd::test {

/// Same as launch(), except that each of several processes throws the error of its own ranks.
void run_ranks(int ranks, const LaunchOptions& options, const std::function<void(RankContext&)>& body);
inline void run_ranks(int ranks, const std::function<void(RankContext&)>& body) {
  run_ranks(ranks, {}, body);
}

/// Returns the number of processes that share the ranks of a run; each runs the same tests. Ranks can access
/// each other's memory only in a single process.
int processes();
/// Returns the number of a run's ranks in this process, resp. whether a rank is in it.
int ranks_here(int ranks);
bool is_here(int rank, int ranks);
/// Returns the texts of all processes, one after the other; every process calls.
std::vector<std::string> from_all_processes(const std::vector<std::string>& texts);
/// A new store that all processes share; every process calls.
std::shared_ptr<Store> common_store();

}  // namespace sherd::test
