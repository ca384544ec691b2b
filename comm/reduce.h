// Elementwise reduction of the ranks' buffers in the one order that sherd promises. Private to comm/.
#pragma once

#include <cstdint>
#include <span>

#include <sherd/comm/communicator.h>

namespace sherd {

/// All dtypes but u8.
bool can_reduce(DType dtype);

/// dst[i] = reduction over s of sources[s][begin + i], for i in [0, count).
///
/// Order: the pairwise tree of Communicator, with sources in rank order. bf16 and f16 are reduced in fp32 and
/// rounded once, the others in their own type; integers wrap. max and min give NaN when any source has one.
/// `dst` may be exactly sources[s] + begin of any s; otherwise it must not overlap what is read.
/// At least one source; never throws for a dtype that can_reduce().
void reduce_pairwise(ReduceOp op, DType dtype, void* dst, std::span<const void* const> sources, int64_t begin,
                     int64_t count);

}  // namespace sherd
