// The operations of all ranks beside each other, and where they part.
#pragma once

#include <compare>
#include <map>
#include <string>
#include <vector>

#include "trace_file.h"

namespace sherd::tools {

/// Operations that ranks number together: a communicator's collectives, its divisions, and the messages from
/// one rank to another.
struct OperationKey {
  std::string group;
  int64_t epoch = 0;
  enum class Lane { collective, split, message } lane = Lane::collective;
  int from = -1, to = -1;  // world ranks, of messages
  int64_t sequence = 0;

  auto operator<=>(const OperationKey&) const = default;
};

/// Pointers are into the files.
struct Operation {
  OperationKey key;
  std::map<int, const FlightEntry*> entries;  // by world rank
  /// World ranks of the group with a file that have not called it, though a rank that has waits for them.
  std::vector<int> never_came;
  /// Ranks that have called it while others wait, but whose stream has not reached it.
  std::vector<int> queued;
  int64_t first_ns = 0;  // when the first rank called it, since 1970
};

/// A place where ranks part.
struct Divergence {
  enum class Kind {
    communicator,
    operation,
    purpose,
    bytes,
    arguments,
    never_came,
    queued
  } kind = Kind::operation;
  std::string group;
  int64_t sequence = 0;
  std::vector<int> ranks;  // the odd ones, of the world
  std::string text;        // a sentence
  int64_t time_ns = 0;
};
const char* name_of(Divergence::Kind kind);

struct Comparison {
  std::vector<Operation> operations;  // by time
  std::vector<Divergence>
      divergences;  // the most telling first: different calls by time, then ranks that did not come
  std::vector<int> without_file;  // world ranks
  std::vector<std::string> remarks;
};

/// The files outlive the result.
Comparison compare(const std::vector<FlightFile>& files);

/// "all_reduce (sum, f32, 8 elements, 32 bytes) for the weights of unit 'a'"
std::string describe(const FlightEntry& entry);
/// "world #3", "world #2 from rank 0 to rank 1", "world split #1"
std::string describe(const OperationKey& key);
/// "rank 3", "ranks 0-2, 5"
std::string ranks_text(const std::vector<int>& ascending);

}  // namespace sherd::tools
