#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/kernels/device/cpu/tasks.h>
#include <sherd/kernels/orthogonalize/cpu/lapack.h>
#include <sherd/kernels/soap/cpu_dgemm.h>
#include <sherd/kernels/soap/cpu_orthonormal_rows.h>
#include <sherd/kernels/soap/reference/step.h>

namespace sherd::cpu {
namespace {

void soap_product(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const double* a,
                  const double* b, double* c) {
  const DoubleView left = trans_a ? DoubleView{a, 1, m} : DoubleView{a, k, 1};
  const DoubleView right = trans_b ? DoubleView{b, 1, k} : DoubleView{b, n, 1};
  dgemm(m, n, k, 1, left, right, 0, c, n);
}

void soap_eigenvectors(int64_t n, double* a, double* values, double* work) {
  const int size = static_cast<int>(n), lwork = 1 + 6 * size + 2 * size * size, liwork = 3 + 5 * size;
  int info = 0;
  OneThread one;  // of LAPACK: its products' bits depend on the number of threads
  // LAPACK's columns, which hold the eigenvectors, are the rows here.
  dsyevd_("V", "U", &size, a, &size, values, work, &lwork, reinterpret_cast<int*>(work + lwork), &liwork,
          &info, 1, 1);
  if (info != 0)
    throw Error(fmt::format("soap_step: LAPACK's dsyevd failed on a {} x {} matrix with info {} ({})", n, n,
                            info, info > 0 ? "no convergence" : "wrong argument"));
}

void soap_step(ExecutionContext& ctx, const SoapArgs& a) {
  soap_batch(a, soap_routines(), ctx.scratch(soap_scratch_bytes(a)));
}

}  // namespace

const SoapRoutines& soap_routines() {
  static constexpr SoapRoutines routines{soap_product, soap_eigenvectors, orthonormal_rows};
  return routines;
}

}  // namespace sherd::cpu

namespace sherd {

const SoapKernels* SoapKernels::cpu() {
  static constexpr SoapKernels table{.soap_step = cpu::soap_step, .soap_scratch = soap_scratch_bytes};
  return &table;
}

}  // namespace sherd
