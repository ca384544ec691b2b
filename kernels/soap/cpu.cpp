#include <fmt/format.h>

#include <sherd/kernels/device/cpu/tasks.h>
#include <sherd/kernels/device/error.h>
#include <sherd/kernels/orthogonalize/cpu/lapack.h>
#include <sherd/kernels/soap/reference/step.h>

// LAPACK reads columns where these matrices have rows: it sees every matrix as its transpose.

namespace sherd::cpu {
namespace {

void soap_product(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const double* a,
                  const double* b, double* c) {
  // c^T = op(b)^T op(a)^T
  const int rows = static_cast<int>(n), cols = static_cast<int>(m), inner = static_cast<int>(k);
  const int ldb = trans_b ? inner : rows, lda = trans_a ? cols : inner;
  const double one = 1, zero = 0;
  dgemm_(trans_b ? "T" : "N", trans_a ? "T" : "N", &rows, &cols, &inner, &one, b, &ldb, a, &lda, &zero, c,
         &rows, 1, 1);
}

[[noreturn]] void fail(const char* routine, int64_t n, int info) {
  throw Error(fmt::format("soap_step: LAPACK's {} failed on a {} x {} matrix with info {} ({})", routine, n,
                          n, info, info > 0 ? "no convergence" : "wrong argument"));
}

void soap_eigenvectors(int64_t n, double* a, double* values, double* work) {
  const int size = static_cast<int>(n), lwork = 1 + 6 * size + 2 * size * size, liwork = 3 + 5 * size;
  int info = 0;
  // Eigenvectors in columns, which are the rows here.
  dsyevd_("V", "U", &size, a, &size, values, work, &lwork, reinterpret_cast<int*>(work + lwork), &liwork,
          &info, 1, 1);
  if (info != 0) fail("dsyevd", n, info);
}

void soap_orthonormal_rows(int64_t n, double* a, double* work) {
  const int size = static_cast<int>(n), lwork = 64 * size;
  int info = 0;
  double *reflectors = work, *rest = work + n;
  dgeqrf_(&size, &size, a, &size, reflectors, rest, &lwork, &info);
  if (info != 0) fail("dgeqrf", n, info);
  // The diagonal of R is overwritten by dorgqr, which needs the signs after it.
  double* signs = rest + lwork;
  for (int64_t i = 0; i < n; ++i) signs[i] = a[i * n + i] < 0 ? -1 : 1;
  dorgqr_(&size, &size, &size, a, &size, reflectors, rest, &lwork, &info);
  if (info != 0) fail("dorgqr", n, info);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) a[i * n + j] *= signs[i];
}

void soap_step(ExecutionContext& ctx, const SoapArgs& a) {
  // One thread: a product's bits depend on the number of threads.
  OneThread one;
  soap_batch(a, soap_routines(), ctx.scratch(soap_scratch_bytes(a)));
}

}  // namespace

const SoapRoutines& soap_routines() {
  static constexpr SoapRoutines routines{soap_product, soap_eigenvectors, soap_orthonormal_rows};
  return routines;
}

}  // namespace sherd::cpu

namespace sherd {

const SoapKernels* SoapKernels::cpu() {
  static constexpr SoapKernels table{.soap_step = cpu::soap_step, .soap_scratch = soap_scratch_bytes};
  return &table;
}

}  // namespace sherd
