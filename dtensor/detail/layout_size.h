// Check that a layout fits 64-bit arithmetic. Private to dtensor/.
#pragma once

#include <sherd/dtensor/layout.h>

namespace sherd {

/// Holds products of two sizes, which may pass 64 bits.
__extension__ typedef __int128 Wide;

/// numel_of() without overflow: negative sizes count as nothing, zeros as one (they hide how large the other
/// sizes are), and it stops at 2^64.
Wide wide_numel(const Shape& shape);
/// Returns the sum of wide_numel() of all parameters.
Wide wide_numel(const std::vector<LayoutParam>& params);

/// @throws InvalidArgument naming the sizes when 64 bits do not hold all intermediate results. For
/// whole_param that leaves world * slice, which depends on the packing: see check_buffer().
/// @pre Everything else about the arguments has been checked.
void check_sizes(const std::vector<LayoutParam>& params, int world, const LayoutOptions& options);

/// @throws InvalidArgument naming the sizes when world * slice passes 64 bits.
void check_buffer(const std::vector<LayoutParam>& params, int world, const LayoutOptions& options,
                  int64_t slice);

/// "200 parameters (3200 elements) on 8 ranks in slices that are a multiple of 64"
std::string sizes_text(const std::vector<LayoutParam>& params, int world, int64_t align);

}  // namespace sherd
