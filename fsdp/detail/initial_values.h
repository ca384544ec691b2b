// First values of tensors, by the rule of their parameter's or buffer's description. Private to fsdp/.
#pragma once

#include <cstdint>
#include <string>

#include <sherd/fsdp/parameter.h>

namespace sherd {

/// Writes the first values of the parameter's shard_range() to `piece` (f32). Queues on `stream`. The calling
/// thread computes functions and orthogonal values; orthogonal values wait for the stream.
/// @throws InvalidArgument for impossible values (ops::random_truncated_normal).
void initial_values(Stream& stream, const Parameter& p, const Tensor& piece, uint64_t seed);

/// Writes the first values of a tensor that is unsharded on this rank. For dtypes other than f32, f32 values
/// are converted: rounded to nearest in narrower floats, towards zero in integers.
/// @throws InvalidArgument naming the first value that an integer type cannot hold.
void initial_values(Stream& stream, const std::string& name, const Init& init, const Tensor& whole,
                    uint64_t seed);

}  // namespace sherd
