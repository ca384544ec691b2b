// What messages about ranks that did not come say of all ranks. Private to comm/.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace sherd::comm {

/// A rank that has come to a call and waits there.
struct Waiting {
  int world_rank = 0;
  std::chrono::steady_clock::time_point since;
};

/// "; rank 0 (for 300 ms) and rank 2 (for 297 ms) have come and wait", in the order of ranks; "" when nobody does.
/// Of many the first few are named.
std::string waiting_clause(std::vector<Waiting> waiting);

/// "; the last call of rank 1 was barrier #1 (0 bytes) of 'world', done 812 ms ago" for each of the first few ranks
/// of which `last` knows one, and says "" otherwise.
std::string last_calls_clause(const std::vector<int>& world_ranks,
                              const std::function<std::string(int world_rank)>& last);

}  // namespace sherd::comm
