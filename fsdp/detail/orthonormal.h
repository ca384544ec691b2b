// Orthonormal vectors from given ones. Private to fsdp/.
#pragma once

#include <cstdint>
#include <vector>

namespace sherd {

/// Orthonormalizes the rows of `a` [vectors, length], row-major. The result is the Q of the QR decomposition
/// of their transpose whose R has a positive diagonal. It is computed by modified Gram-Schmidt with each
/// projection done twice, which gives orthogonality to rounding where the rows are independent (Giraud et
/// al., 2005). One thread and one order of sums: equal input gives equal bits.
/// @pre vectors <= length, and the rows are linearly independent.
void make_orthonormal(std::vector<double>& a, int64_t vectors, int64_t length);

}  // namespace sherd
