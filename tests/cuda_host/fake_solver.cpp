// cuSOLVER's singular values, eigenvalues and QR, imitated on the host by LAPACK. See fake.h.
#include <cusolverDn.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "fake.h"
#include "late.h"

extern "C" {
void dgesvd_(const char* jobu, const char* jobvt, const int* m, const int* n, double* a, const int* lda,
             double* s, double* u, const int* ldu, double* vt, const int* ldvt, double* work,
             const int* lwork, int* info, std::size_t jobu_length, std::size_t jobvt_length);
void dsyev_(const char* jobz, const char* uplo, const int* n, double* a, const int* lda, double* w,
            double* work, const int* lwork, int* info, std::size_t jobz_length, std::size_t uplo_length);
void dgeqrf_(const int* m, const int* n, double* a, const int* lda, double* tau, double* work,
             const int* lwork, int* info);
void dorgqr_(const int* m, const int* n, const int* k, double* a, const int* lda, const double* tau,
             double* work, const int* lwork, int* info);
}

struct cusolverDnContext {
  cudaStream_t stream = nullptr;
};
struct cusolverDnParams {};

namespace {

using cuda_host::Live;

constexpr size_t kWorkspaceBytes = 1024;

bool real(cudaDataType type) { return type == CUDA_R_32F || type == CUDA_R_64F; }

double get(const void* p, cudaDataType type, int64_t i) {
  return type == CUDA_R_32F ? static_cast<double>(static_cast<const float*>(p)[i])
                            : static_cast<const double*>(p)[i];
}
void put(void* p, cudaDataType type, int64_t i, double value) {
  if (type == CUDA_R_32F)
    static_cast<float*>(p)[i] = static_cast<float>(value);
  else
    static_cast<double*>(p)[i] = value;
}

std::vector<double> gather(const void* p, cudaDataType type, int64_t rows, int64_t cols, int64_t ld) {
  std::vector<double> out(static_cast<size_t>(rows * cols));
  for (int64_t c = 0; c < cols; ++c)
    for (int64_t r = 0; r < rows; ++r) out[static_cast<size_t>(r + c * rows)] = get(p, type, r + c * ld);
  return out;
}
/// in[rows, cols] column after column; or its transpose.
void scatter(void* p, cudaDataType type, const std::vector<double>& in, int64_t rows, int64_t cols,
             int64_t ld, bool transpose = false) {
  for (int64_t c = 0; c < cols; ++c)
    for (int64_t r = 0; r < rows; ++r)
      put(p, type, transpose ? c + r * ld : r + c * ld, in[static_cast<size_t>(r + c * rows)]);
}

struct Factors {
  std::vector<double> u, s, vt;
  int u_cols = 0, vt_rows = 0, info = 0;
};

/// jobs: 'A', 'S' or 'N'.
Factors factor(std::vector<double> a, int64_t rows, int64_t cols, char jobu, char jobvt) {
  const int m = static_cast<int>(rows), n = static_cast<int>(cols), k = std::min(m, n);
  Factors f;
  f.u_cols = jobu == 'A' ? m : jobu == 'S' ? k : 0;
  f.vt_rows = jobvt == 'A' ? n : jobvt == 'S' ? k : 0;
  f.s.resize(static_cast<size_t>(k));
  f.u.resize(static_cast<size_t>(std::max(1, m * f.u_cols)));
  f.vt.resize(static_cast<size_t>(std::max(1, f.vt_rows * n)));
  const int ldvt = std::max(1, f.vt_rows), lwork = 64 * (m + n);
  std::vector<double> work(static_cast<size_t>(lwork));
  dgesvd_(&jobu, &jobvt, &m, &n, a.data(), &m, f.s.data(), f.u.data(), &m, f.vt.data(), &ldvt, work.data(),
          &lwork, &f.info, 1, 1);
  return f;
}

cusolverStatus_t workspace(size_t* device, size_t* host) {
  *device = kWorkspaceBytes;
  *host = 0;
  return CUSOLVER_STATUS_SUCCESS;
}

}  // namespace

#define ENTER(function) \
  if (const int code = cuda_host::enter(#function)) return static_cast<cusolverStatus_t>(code)
#define REQUIRE(condition) \
  if (!(condition)) return CUSOLVER_STATUS_INVALID_VALUE

cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t* handle) {
  ENTER(cusolverDnCreate);
  *handle = new cusolverDnContext;
  cuda_host::count_live(&Live::handles, 1);
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnDestroy(cusolverDnHandle_t handle) {
  ENTER(cusolverDnDestroy);
  delete handle;
  cuda_host::count_live(&Live::handles, -1);
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream) {
  ENTER(cusolverDnSetStream);
  handle->stream = stream;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnSetDeterministicMode(cusolverDnHandle_t handle, cusolverDeterministicMode_t mode) {
  ENTER(cusolverDnSetDeterministicMode);
  REQUIRE(handle && mode == CUSOLVER_DETERMINISTIC_RESULTS);  // sherd asks for no other
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnGetStream(cusolverDnHandle_t handle, cudaStream_t* stream) {
  *stream = handle->stream;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnCreateParams(cusolverDnParams_t* params) {
  ENTER(cusolverDnCreateParams);
  *params = new cusolverDnParams;
  cuda_host::count_live(&Live::descriptors, 1);
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnDestroyParams(cusolverDnParams_t params) {
  delete params;
  cuda_host::count_live(&Live::descriptors, -1);
  return CUSOLVER_STATUS_SUCCESS;
}

// More columns than rows are refused by the library too.
cusolverStatus_t cusolverDnXgesvd_bufferSize(cusolverDnHandle_t handle, cusolverDnParams_t, signed char,
                                             signed char, int64_t m, int64_t n, cudaDataType type_a,
                                             const void*, int64_t lda, cudaDataType, const void*,
                                             cudaDataType, const void*, int64_t, cudaDataType, const void*,
                                             int64_t, cudaDataType, size_t* device, size_t* host) {
  ENTER(cusolverDnXgesvd_bufferSize);
  REQUIRE(handle && n > 0 && m >= n && lda >= m && real(type_a));
  return workspace(device, host);
}
cusolverStatus_t cusolverDnXgesvd(cusolverDnHandle_t handle, cusolverDnParams_t, signed char jobu,
                                  signed char jobvt, int64_t m, int64_t n, cudaDataType type_a, void* a,
                                  int64_t lda, cudaDataType type_s, void* s, cudaDataType type_u, void* u,
                                  int64_t ldu, cudaDataType type_vt, void* vt, int64_t ldvt,
                                  cudaDataType compute, void* buffer, size_t bytes, void*, size_t,
                                  int* info) {
  const int code = cuda_host::enter("cusolverDnXgesvd");
  if (code > 0 && code < cuda_host::kNoConvergence) return static_cast<cusolverStatus_t>(code);
  REQUIRE(handle && n > 0 && m >= n && lda >= m && buffer && bytes >= kWorkspaceBytes && info);
  REQUIRE(real(type_a) && type_a == type_s && type_a == type_u && type_a == type_vt && type_a == compute);
  const auto job = [](signed char c) { return c == 'A' || c == 'S' || c == 'N'; };
  REQUIRE(job(jobu) && job(jobvt) && (jobu == 'N' || ldu >= m) && (jobvt == 'N' || ldvt >= n));
  cuda_host::issue_on(handle->stream, [=] {
    const Factors f =
        factor(gather(a, type_a, m, n, lda), m, n, static_cast<char>(jobu), static_cast<char>(jobvt));
    scatter(s, type_s, f.s, n, 1, n);
    if (f.u_cols) scatter(u, type_u, f.u, m, f.u_cols, ldu);
    if (f.vt_rows) scatter(vt, type_vt, f.vt, f.vt_rows, n, ldvt);
    *info = code >= cuda_host::kNoConvergence ? code - cuda_host::kNoConvergence : f.info;
  });
  return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnXgesvdp_bufferSize(cusolverDnHandle_t handle, cusolverDnParams_t,
                                              cusolverEigMode_t, int, int64_t m, int64_t n,
                                              cudaDataType type_a, const void*, int64_t lda, cudaDataType,
                                              const void*, cudaDataType, const void*, int64_t, cudaDataType,
                                              const void*, int64_t, cudaDataType, size_t* device,
                                              size_t* host) {
  ENTER(cusolverDnXgesvdp_bufferSize);
  REQUIRE(handle && m > 0 && n > 0 && lda >= m && real(type_a));
  return workspace(device, host);
}
cusolverStatus_t cusolverDnXgesvdp(cusolverDnHandle_t handle, cusolverDnParams_t, cusolverEigMode_t jobz,
                                   int econ, int64_t m, int64_t n, cudaDataType type_a, void* a, int64_t lda,
                                   cudaDataType type_s, void* s, cudaDataType type_u, void* u, int64_t ldu,
                                   cudaDataType type_v, void* v, int64_t ldv, cudaDataType compute,
                                   void* buffer, size_t bytes, void*, size_t, int* info,
                                   double* error_sigma) {
  ENTER(cusolverDnXgesvdp);
  REQUIRE(handle && m > 0 && n > 0 && lda >= m && buffer && bytes >= kWorkspaceBytes && info && error_sigma);
  REQUIRE(real(type_a) && type_a == type_s && type_a == type_u && type_a == type_v && type_a == compute);
  const char job = jobz == CUSOLVER_EIG_MODE_NOVECTOR ? 'N' : econ ? 'S' : 'A';
  REQUIRE(job == 'N' || (ldu >= m && ldv >= n));
  cuda_host::issue_on(handle->stream, [=] {
    const Factors f = factor(gather(a, type_a, m, n, lda), m, n, job, job);
    scatter(s, type_s, f.s, std::min(m, n), 1, std::min(m, n));
    if (f.u_cols) scatter(u, type_u, f.u, m, f.u_cols, ldu);
    if (f.vt_rows) scatter(v, type_v, f.vt, f.vt_rows, n, ldv, true);
    *info = f.info;
    *error_sigma = 0;
  });
  return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnXsyevd_bufferSize(cusolverDnHandle_t handle, cusolverDnParams_t, cusolverEigMode_t,
                                             cublasFillMode_t, int64_t n, cudaDataType type_a, const void*,
                                             int64_t lda, cudaDataType, const void*, cudaDataType,
                                             size_t* device, size_t* host) {
  ENTER(cusolverDnXsyevd_bufferSize);
  REQUIRE(handle && n > 0 && lda >= n && real(type_a));
  return workspace(device, host);
}
cusolverStatus_t cusolverDnXsyevd(cusolverDnHandle_t handle, cusolverDnParams_t, cusolverEigMode_t jobz,
                                  cublasFillMode_t uplo, int64_t n, cudaDataType type_a, void* a, int64_t lda,
                                  cudaDataType type_w, void* w, cudaDataType compute, void* buffer,
                                  size_t bytes, void*, size_t, int* info) {
  ENTER(cusolverDnXsyevd);
  REQUIRE(handle && n > 0 && lda >= n && buffer && bytes >= kWorkspaceBytes && info);
  REQUIRE(real(type_a) && type_a == type_w && type_a == compute);
  cuda_host::issue_on(handle->stream, [=] {
    std::vector<double> matrix = gather(a, type_a, n, n, lda), values(static_cast<size_t>(n));
    const int order = static_cast<int>(n), lwork = 64 * order;
    std::vector<double> work(static_cast<size_t>(lwork));
    const char job = jobz == CUSOLVER_EIG_MODE_VECTOR ? 'V' : 'N';
    const char triangle = uplo == CUBLAS_FILL_MODE_LOWER ? 'L' : 'U';
    dsyev_(&job, &triangle, &order, matrix.data(), &order, values.data(), work.data(), &lwork, info, 1, 1);
    scatter(w, type_w, values, n, 1, n);
    if (job == 'V') scatter(a, type_a, matrix, n, n, lda);
  });
  return CUSOLVER_STATUS_SUCCESS;
}

// Work of 64 doubles a column, as LAPACK's blocks take. The library wants as many rows as columns for orgqr.
cusolverStatus_t cusolverDnDgeqrf_bufferSize(cusolverDnHandle_t handle, int m, int n, double*, int lda,
                                             int* doubles) {
  ENTER(cusolverDnDgeqrf_bufferSize);
  REQUIRE(handle && m > 0 && n > 0 && lda >= m);
  *doubles = 64 * n;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnDgeqrf(cusolverDnHandle_t handle, int m, int n, double* a, int lda, double* tau,
                                  double* work, int doubles, int* info) {
  ENTER(cusolverDnDgeqrf);
  REQUIRE(handle && m > 0 && n > 0 && lda >= m && tau && work && doubles >= 64 * n && info);
  cuda_host::issue_on(handle->stream, [=] { dgeqrf_(&m, &n, a, &lda, tau, work, &doubles, info); });
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnDorgqr_bufferSize(cusolverDnHandle_t handle, int m, int n, int k, const double*,
                                             int lda, const double*, int* doubles) {
  ENTER(cusolverDnDorgqr_bufferSize);
  REQUIRE(handle && n > 0 && m >= n && k <= n && lda >= m);
  *doubles = 64 * n;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnDorgqr(cusolverDnHandle_t handle, int m, int n, int k, double* a, int lda,
                                  const double* tau, double* work, int doubles, int* info) {
  ENTER(cusolverDnDorgqr);
  REQUIRE(handle && n > 0 && m >= n && k <= n && lda >= m && tau && work && doubles >= 64 * n && info);
  cuda_host::issue_on(handle->stream, [=] { dorgqr_(&m, &n, &k, a, &lda, tau, work, &doubles, info); });
  return CUSOLVER_STATUS_SUCCESS;
}
