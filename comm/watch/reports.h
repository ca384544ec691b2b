// Reports about missing ranks, in words that hold for all ranks. Private to comm/.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <sherd/comm/core/purpose.h>

namespace sherd::comm {

/// A rank that waits at a call.
struct Waiting {
  int world_rank = 0;
  std::chrono::steady_clock::time_point since;
};

/// Returns "; rank 0 (for 300 ms) and rank 2 (for 297 ms) have come and wait", in the order of ranks; "" without any.
/// Of many, the first few are named.
std::string waiting_clause(std::vector<Waiting> waiting);

/// Writes one line to stderr on the rank that has the lowest number among those in `waiting`: "sherd:
/// split(color 0, key 1) for export_weights() on rank 0 waits for ranks 1, 2; rank 0 (for 10000 ms) has come
/// and waits; every rank has to make this call ...; it fails after 300000 ms". The other ranks write nothing.
/// Does nothing unless Purpose::is_entry(). `more`: clauses as below.
void notice_lone_call(const Purpose& purpose, int world_rank, const std::string& where,
                      const std::vector<int>& missing, std::vector<Waiting> waiting,
                      std::chrono::milliseconds timeout, const std::string& more) noexcept;

/// Returns "; the last call of rank 1 was barrier #1 (0 bytes) of 'world', done 812 ms ago" for each of the
/// first few ranks for which `last` is not empty; "" otherwise.
std::string last_calls_clause(const std::vector<int>& world_ranks,
                              const std::function<std::string(int world_rank)>& last);

/// Returns "<where>: waited 300 ms for ranks 2, 3, ..."; `more`: clauses as above.
std::string timeout_message(const std::string& where, std::chrono::milliseconds timeout,
                            const std::vector<int>& missing, const std::string& more = "");
/// Returns "<where>: rank 2 has returned from its body and will not call it; ..."
std::string left_message(const std::string& where, const std::vector<int>& gone,
                         const std::string& more = "");

}  // namespace sherd::comm
