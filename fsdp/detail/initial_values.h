// First values of tensors, by the rule of their parameter's or buffer's description. Private to fsdp/.
#pragma once

#include <cstdint>
#include <string>

#include <sherd/fsdp/parameter.h>

namespace sherd {

/// `piece` f32: the elements of the parameter's shard_range(). Queues on `stream`; functions and orthogonal
/// values are computed by the calling thread, and the latter wait for the stream.
/// @throws InvalidArgument for values that cannot be (ops::random_truncated_normal).
void initial_values(Stream& stream, const Parameter& p, const Tensor& piece, uint64_t seed);

/// The same of a tensor that is whole on this rank. Other dtypes than f32 get f32 values converted: rounded
/// to nearest in the narrower floats, towards zero in integers.
/// @throws InvalidArgument naming the first value that an integer type cannot hold.
void initial_values(Stream& stream, const std::string& name, const Init& init, const Tensor& whole,
                    uint64_t seed);

}  // namespace sherd
