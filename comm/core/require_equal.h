// A comparison of ranks on demand.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <sherd/comm/communicator.h>

namespace sherd {

/// values[i] of every rank, as of rank r at [r * values.size() + i]. Collective with equally many values on every
/// rank; queues on `stream` and blocks the host.
/// `memory`: i64, size() * values.size() elements, for a stream that must not wait for what compute() does.
std::vector<uint64_t> gather_values(Communicator& comm, Stream& stream, std::span<const uint64_t> values,
                                    Tensor memory = {});

/// Of values[r] of each rank r, and by which number messages call it: "ranks 1 and 3 differ from the others" by
/// what most have (the lowest rank's, if several have as many); "" when all are equal.
std::string differing(std::span<const uint64_t> values, std::span<const int> names);

/// @throws ShapeMismatch on every rank alike, "<otherwise>: ranks 1, 3 differ from the others (...)" by world
/// rank, unless all ranks pass the same value. Collective; queues on `stream` and blocks the host. Where an
/// all-reduce is made anyway, SameValue costs less. `memory`: as of gather_values() for two values.
void require_equal(Communicator& comm, Stream& stream, uint64_t value, const std::string& otherwise,
                   Tensor memory = {});

}  // namespace sherd
