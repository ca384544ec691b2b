// LAPACK and BLAS routines of the CPU kernels: Fortran, column-major, 32-bit integers. Private to CPU kernels.
#pragma once

#include <cstddef>

extern "C" {

/// A[m,n] = U diag(S) VT. jobz 'S': U [m,k], VT [k,n], k = min(m,n). lwork -1 asks for the best lwork in
/// work[0]. iwork has 8k integers. info: 0, or > 0 when it did not converge, < 0 for a wrong argument.
void dgesdd_(const char* jobz, const int* m, const int* n, double* a, const int* lda, double* s, double* u,
             const int* ldu, double* vt, const int* ldvt, double* work, const int* lwork, int* iwork,
             int* info, std::size_t jobz_length);

/// Eigenvectors of the symmetric A[n,n] in its columns (jobz 'V'), eigenvalues ascending in w. work has
/// 1 + 6n + 2n^2 elements, iwork 3 + 5n. info: 0, or > 0 when it did not converge, < 0 for a wrong argument.
void dsyevd_(const char* jobz, const char* uplo, const int* n, double* a, const int* lda, double* w,
             double* work, const int* lwork, int* iwork, const int* liwork, int* info,
             std::size_t jobz_length, std::size_t uplo_length);

/// C[m,n] = alpha op(A) op(B) + beta C.
void dgemm_(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k,
            const double* alpha, const double* a, const int* lda, const double* b, const int* ldb,
            const double* beta, double* c, const int* ldc, std::size_t trans_a_length,
            std::size_t trans_b_length);
}
