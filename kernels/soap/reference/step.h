// One matrix's step of KL-SOAP in double, over a set of matrix routines. Private to kernels.
#pragma once

#include <cstdint>

#include <sherd/kernels/soap/soap.h>

namespace sherd {

/// Matrix routines in double, row-major.
struct SoapRoutines {
  /// c [m, n] = op(a) op(b), where op transposes if asked for and k is the contracted size.
  void (*product)(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const double* a,
                  const double* b, double* c);
  /// Replaces a symmetric a [n, n] by its eigenvectors, one in each row, and writes the eigenvalues, in any order.
  /// `work` has soap_routine_doubles(n). @throws Error when they are not found.
  void (*eigenvectors)(int64_t n, double* a, double* values, double* work);
  /// Replaces a [n, n] by Q^T of the QR factorization of a^T; the diagonal of R is positive or zero.
  void (*orthonormal_rows)(int64_t n, double* a, double* work);
};

namespace reference {
const SoapRoutines& soap_routines();  // Jacobi rotations, Householder reflections
}
namespace cpu {
const SoapRoutines& soap_routines();  // LAPACK's eigenvectors, blocked reflections
}

/// Returns the doubles of work memory of the routines for n.
int64_t soap_routine_doubles(int64_t n);
/// Returns the doubles of work memory of soap_matrix().
int64_t soap_work_doubles(int64_t rows, int64_t cols);

/// Advances the state by one step with gradient g [rows, cols], and writes the update; see SoapArgs. All finite.
void soap_matrix(int64_t rows, int64_t cols, const double* g, double* out, const SoapStateOf<double>& state,
                 const SoapConstants& constants, const SoapRoutines& routines, double* work);

/// Runs the kernel: widens each matrix and its state, calls soap_matrix(), and rounds. A skipped or non-finite matrix
/// leaves its state.
/// @param memory of soap_scratch_bytes().
void soap_batch(const SoapArgs& args, const SoapRoutines& routines, void* memory);
int64_t soap_scratch_bytes(const SoapArgs& args);

}  // namespace sherd
