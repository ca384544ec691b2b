// The imitated libraries do what the kernels' tests take for granted.
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_host/fake.h>
#include <cuda_runtime_api.h>
#include <cusolverDn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

struct Fake : testing::Test {
  void TearDown() override {
    cuda_host::fail_nothing();
    unsetenv("SHERD_HOST_CUDA_DEVICES");
    EXPECT_EQ(cuda_host::live(), before);
  }
  const cuda_host::Live before = cuda_host::live();
};

TEST_F(Fake, MemoryIsCountedAndStartsAsNaN) {
  float* p = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&p), 400), cudaSuccess);
  EXPECT_EQ(cuda_host::live().device_bytes, before.device_bytes + 400);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(std::isnan(p[i]));
  cudaPointerAttributes a{};
  EXPECT_EQ(cudaPointerGetAttributes(&a, p + 99), cudaSuccess);
  EXPECT_EQ(a.type, cudaMemoryTypeDevice);
  EXPECT_EQ(cudaPointerGetAttributes(&a, p + 100), cudaSuccess);
  EXPECT_EQ(a.type, cudaMemoryTypeUnregistered);
  EXPECT_EQ(cudaFree(p + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(p), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(p), cudaSuccess);
  EXPECT_EQ(cudaFree(p), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&p), size_t{1} << 40), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(Fake, CopiesMustFitTheirDirectionAndTheirBlock) {
  char *d = nullptr, h[64] = "text";
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&d), 64), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(d, h, 64, cudaMemcpyHostToDevice, nullptr), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(d, h, 64, cudaMemcpyDeviceToHost, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(d + 1, h, 64, cudaMemcpyDefault, nullptr), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaMemcpy2DAsync(d + 32, 8, d, 2, 1, 4, cudaMemcpyDeviceToDevice, nullptr), cudaSuccess);
  EXPECT_EQ(d[32], 't');
  EXPECT_EQ(d[40], 'x');
  EXPECT_EQ(cudaMemsetAsync(d, 7, 64, nullptr), cudaSuccess);
  EXPECT_EQ(d[63], 7);
  EXPECT_EQ(cudaFree(d), cudaSuccess);
}

TEST_F(Fake, HandlesAreKnownByName) {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  ASSERT_EQ(cudaSetDevice(3), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -1), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&begin, cudaEventDefault), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&end, cudaEventDefault), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(begin, stream), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(end, stream), cudaErrorInvalidResourceHandle);  // another device's
  EXPECT_EQ(cudaEventRecord(end, nullptr), cudaSuccess);
  float ms = -1;
  EXPECT_EQ(cudaEventElapsedTime(&ms, begin, end), cudaSuccess);
  EXPECT_GE(ms, 0);
  EXPECT_EQ(cudaEventDestroy(begin), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(stream, begin, 0), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventDestroy(end), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
}

TEST_F(Fake, DevicesComeFromTheEnvironment) {
  int count = -1;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 8);
  setenv("SHERD_HOST_CUDA_DEVICES", "2", 1);
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 2);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  setenv("SHERD_HOST_CUDA_DEVICES", "0", 1);
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  EXPECT_EQ(count, 0);
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, 8), cudaErrorNoDevice);
  cudaGetLastError();
}

TEST_F(Fake, CallsFailOnRequest) {
  cuda_host::reset_calls();
  cuda_host::fail_call("cudaMalloc", 2, cudaErrorLaunchFailure);
  void *a = nullptr, *b = nullptr;
  EXPECT_EQ(cudaMalloc(&a, 8), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&b, 8), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaMalloc(&b, 8), cudaSuccess);
  EXPECT_EQ(cuda_host::calls()["cudaMalloc"], 3);
  EXPECT_EQ(cudaFree(a), cudaSuccess);
  EXPECT_EQ(cudaFree(b), cudaSuccess);
  cudaGetLastError();
}

struct Blas : Fake {
  void SetUp() override { ASSERT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS); }
  void TearDown() override {
    cublasLtMatmulDescDestroy(product);
    for (cublasLtMatrixLayout_t l : {a, b, d}) cublasLtMatrixLayoutDestroy(l);
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtDestroy(handle);
    Fake::TearDown();
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    ASSERT_EQ(cublasLtMatmulDescSetAttribute(product, attribute, &value, sizeof value),
              CUBLAS_STATUS_SUCCESS);
  }
  template <class T>
  void set(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, T value) {
    ASSERT_EQ(cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof value),
              CUBLAS_STATUS_SUCCESS);
  }
  cublasStatus_t find(cublasLtMatmulHeuristicResult_t& result) {
    int found = 0;
    return cublasLtMatmulAlgoGetHeuristic(handle, product, a, b, d, d, preference, 1, &result, &found);
  }
  cublasStatus_t run(float alpha, const void* x, const void* y, float beta, void* out,
                     const cublasLtMatmulAlgo_t* algorithm = nullptr) {
    return cublasLtMatmul(handle, product, &alpha, x, a, y, b, &beta, out, d, out, d, algorithm, nullptr, 0,
                          nullptr);
  }

  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
};

// Batches of D[m,n] = 2 A^T B + D, each matrix in another order, against sums of exact products of integers.
TEST_F(Blas, Products) {
  const int64_t m = 7, n = 6, k = 5, batches = 3;
  for (const auto compute : {CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32})
    for (const bool row_major : {false, true}) {
      std::mt19937 engine(1);
      std::vector<float> x(batches * m * 8), y(batches * 40), out(batches * 60);
      for (auto* v : {&x, &y, &out})
        for (float& e : *v) e = static_cast<float>(engine() % 9) - 4;
      const std::vector<float> old = out;
      ASSERT_EQ(cublasLtMatmulDescCreate(&product, compute, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
      set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
      ASSERT_EQ(cublasLtMatrixLayoutCreate(&a, CUDA_R_32F, k, m, row_major ? m : 8), CUBLAS_STATUS_SUCCESS);
      ASSERT_EQ(cublasLtMatrixLayoutCreate(&b, CUDA_R_32F, k, n, 6), CUBLAS_STATUS_SUCCESS);
      ASSERT_EQ(cublasLtMatrixLayoutCreate(&d, CUDA_R_32F, m, n, row_major ? 6 : 8), CUBLAS_STATUS_SUCCESS);
      if (row_major) {
        set(a, CUBLASLT_MATRIX_LAYOUT_ORDER, CUBLASLT_ORDER_ROW);
        set(d, CUBLASLT_MATRIX_LAYOUT_ORDER, CUBLASLT_ORDER_ROW);
      }
      const int64_t strides[] = {m * 8, 40, 60};
      for (int i = 0; i < 3; ++i) {
        const cublasLtMatrixLayout_t layout = i == 0 ? a : i == 1 ? b : d;
        set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(batches));
        set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, strides[i]);
      }
      ASSERT_EQ(run(2, x.data(), y.data(), 1, out.data()), CUBLAS_STATUS_SUCCESS);
      for (int64_t z = 0; z < batches; ++z)
        for (int64_t i = 0; i < m; ++i)
          for (int64_t j = 0; j < n; ++j) {
            float sum = 0;
            for (int64_t l = 0; l < k; ++l)
              sum += x[z * strides[0] + (row_major ? l * m + i : l + i * 8)] * y[z * strides[1] + l + j * 6];
            const int64_t at = z * strides[2] + (row_major ? i * 6 + j : i + j * 8);
            EXPECT_EQ(out[at], 2 * sum + old[at]) << z << " " << i << " " << j;
          }
      cublasLtMatmulDescDestroy(product);
      for (cublasLtMatrixLayout_t* l : {&a, &b, &d}) cublasLtMatrixLayoutDestroy(*l), *l = nullptr;
      product = nullptr;
    }
}

// D = gelu(A B + bias) with A B + bias in the auxiliary matrix; beta 0 reads no NaN.
TEST_F(Blas, Epilogues) {
  const int m = 3, n = 2, k = 4, ld = 8;
  std::vector<__nv_bfloat16> x(m * k), y(k * n), bias(m), out(m * n, __float2bfloat16_rn(NAN)), aux(ld * n);
  for (int i = 0; i < m * k; ++i) x[i] = __float2bfloat16_rn(static_cast<float>(i % 5 - 2));
  for (int i = 0; i < k * n; ++i) y[i] = __float2bfloat16_rn(static_cast<float>(i % 3 - 1));
  for (int i = 0; i < m; ++i) bias[i] = __float2bfloat16_rn(static_cast<float>(i) / 2);
  ASSERT_EQ(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cublasLtMatrixLayoutCreate(&a, CUDA_R_16BF, m, k, m), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cublasLtMatrixLayoutCreate(&b, CUDA_R_16BF, k, n, k), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cublasLtMatrixLayoutCreate(&d, CUDA_R_16BF, m, n, m), CUBLAS_STATUS_SUCCESS);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void*>(bias.data()));
  set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(aux.data()));
  set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{m});
  EXPECT_EQ(run(1, x.data(), y.data(), 0, out.data()), CUBLAS_STATUS_NOT_SUPPORTED);  // no multiple of 8
  set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{ld});
  ASSERT_EQ(run(1, x.data(), y.data(), 0, out.data()), CUBLAS_STATUS_SUCCESS);
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      float v = __bfloat162float(bias[i]);
      for (int l = 0; l < k; ++l) v += __bfloat162float(x[i + l * m]) * __bfloat162float(y[l + j * k]);
      EXPECT_EQ(__bfloat162float(aux[i + j * ld]), v);
      EXPECT_NEAR(__bfloat162float(out[i + j * m]),
                  0.5 * v * (1 + std::tanh(0.79788456 * (v + 0.044715 * v * v * v))),
                  0.01 * (1 + std::abs(v)));
    }
}

TEST_F(Blas, PointersMustHaveTheAlignmentOfTheSearch) {
  alignas(256) static float x[64], out[64];
  ASSERT_EQ(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  for (cublasLtMatrixLayout_t* l : {&a, &b, &d})
    ASSERT_EQ(cublasLtMatrixLayoutCreate(l, CUDA_R_32F, 2, 2, 2), CUBLAS_STATUS_SUCCESS);
  cublasLtMatmulHeuristicResult_t result;
  ASSERT_EQ(find(result), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(run(1, x, x, 0, out, &result.algo), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(run(1, x + 1, x, 0, out, &result.algo), CUBLAS_STATUS_INVALID_VALUE);
  ASSERT_EQ(cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
  const uint32_t bytes = 4;
  ASSERT_EQ(
      cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &bytes, 4),
      CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(find(result), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(run(1, x + 1, x, 0, out, &result.algo), CUBLAS_STATUS_SUCCESS);
}

TEST_F(Fake, SingularValuesAndEigenvalues) {
  cusolverDnHandle_t handle = nullptr;
  cusolverDnParams_t params = nullptr;
  ASSERT_EQ(cusolverDnCreate(&handle), CUSOLVER_STATUS_SUCCESS);
  ASSERT_EQ(cusolverDnCreateParams(&params), CUSOLVER_STATUS_SUCCESS);
  const int64_t m = 5, n = 3;
  const std::vector<float> a{1, 2, 3, 4, 5, -1, 0, 2, 7, 1, 0.5f, 3, -2, 1, 1};
  std::vector<float> copy = a, s(n), u(m * n), v(n * n), work(4096);
  size_t device = 0, host = 0;
  int info = -1;
  double error = -1;
  const auto f = CUDA_R_32F;
  const auto vectors = CUSOLVER_EIG_MODE_VECTOR;
  ASSERT_EQ(cusolverDnXgesvdp_bufferSize(handle, params, vectors, 1, m, n, f, a.data(), m, f, s.data(), f,
                                         u.data(), m, f, v.data(), n, f, &device, &host),
            CUSOLVER_STATUS_SUCCESS);
  ASSERT_LE(device, work.size() * 4);
  ASSERT_EQ(cusolverDnXgesvdp(handle, params, vectors, 1, m, n, f, copy.data(), m, f, s.data(), f, u.data(),
                              m, f, v.data(), n, f, work.data(), device, nullptr, host, &info, &error),
            CUSOLVER_STATUS_SUCCESS);
  EXPECT_EQ(info, 0);
  const auto rebuilt = [&](bool transposed) {
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        float sum = 0;
        for (int64_t l = 0; l < n; ++l)
          sum += u[i + l * m] * s[l] * (transposed ? v[l + j * n] : v[j + l * n]);
        EXPECT_NEAR(sum, a[i + j * m], 1e-5);
      }
  };
  rebuilt(false);
  copy = a;
  ASSERT_EQ(cusolverDnXgesvd(handle, params, 'S', 'S', m, n, f, copy.data(), m, f, s.data(), f, u.data(), m,
                             f, v.data(), n, f, work.data(), 4096, nullptr, 0, &info),
            CUSOLVER_STATUS_SUCCESS);
  rebuilt(true);
  EXPECT_EQ(cusolverDnXgesvd(handle, params, 'S', 'S', n, m, f, copy.data(), m, f, s.data(), f, u.data(), m,
                             f, v.data(), m, f, work.data(), 4096, nullptr, 0, &info),
            CUSOLVER_STATUS_INVALID_VALUE);  // wide
  std::vector<double> symmetric{2, 1, 1, 2}, w(2), buffer(1024);
  ASSERT_EQ(cusolverDnXsyevd(handle, params, vectors, CUBLAS_FILL_MODE_LOWER, 2, CUDA_R_64F, symmetric.data(),
                             2, CUDA_R_64F, w.data(), CUDA_R_64F, buffer.data(), 8192, nullptr, 0, &info),
            CUSOLVER_STATUS_SUCCESS);
  EXPECT_NEAR(w[0], 1, 1e-12);
  EXPECT_NEAR(w[1], 3, 1e-12);
  EXPECT_NEAR(std::abs(symmetric[0]), std::sqrt(0.5), 1e-12);
  cusolverDnDestroyParams(params);
  cusolverDnDestroy(handle);
}

}  // namespace
