// Orthonormal vectors from given ones. Private to fsdp/.
#pragma once

#include <cstdint>
#include <vector>

namespace sherd {

/// The rows of `a` [vectors, length], row-major, become orthonormal: the Q of the QR decomposition of their
/// transpose whose R has a positive diagonal, by modified Gram-Schmidt, each projection done twice (Giraud et
/// al., 2005: enough for orthogonality to rounding where the rows are independent). One thread and one order
/// of sums, so that equal input gives equal bits.
/// @pre vectors <= length, and the rows are linearly independent.
void make_orthonormal(std::vector<double>& a, int64_t vectors, int64_t length);

}  // namespace sherd
