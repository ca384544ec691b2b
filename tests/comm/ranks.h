// How the suites that every backend passes start their ranks: with the local backend in test_comm, over the
// imitated NCCL in test_comm_nccl.
#pragma once

#include <functional>

#include <sherd/comm/launcher.h>

namespace sherd::test {

/// As launch().
void run_ranks(int ranks, const LaunchOptions& options, const std::function<void(RankContext&)>& body);
inline void run_ranks(int ranks, const std::function<void(RankContext&)>& body) {
  run_ranks(ranks, {}, body);
}

}  // namespace sherd::test
