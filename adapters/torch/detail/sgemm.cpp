// FP32 matrix product for programs with libtorch: libtorch's BLAS in place of oneDNN.
//
// libtorch_cpu.so holds another oneDNN and exports parts of it: the functions that std::call_once
// instantiates for it have the same names as those of the system's, and are found first. The system's oneDNN
// then sets up libtorch's kernels instead of its own, and each of its products fails as not implemented. So
// programs with libtorch have this function in its place: it is part of the one object that all of the
// adapter is, which is linked before libraries are looked at.
#include <algorithm>
#include <cstdint>

extern "C" {

void sgemm_(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k,
            const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
            const float* beta, float* c, const int* ldc);

// As in dnnl.h, of row-major matrices. That of libtorch's folder is of another version.
int dnnl_sgemm(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
               int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  constexpr int kInvalidArguments = 2;
  for (const int64_t v : {m, n, k, lda, ldb, ldc})
    if (v < 0 || v > INT32_MAX) return kInvalidArguments;
  const auto word = [](int64_t v) { return static_cast<int>(v); };
  // BLAS is column-major: there these are the transposes, and the product is that of B' and A'.
  const int mm = word(m), nn = word(n), kk = word(k), la = word(lda), lb = word(ldb), lc = word(ldc);
  sgemm_(&trans_b, &trans_a, &nn, &mm, &kk, &alpha, b, &lb, a, &la, &beta, c, &lc);
  return 0;
}

}  // extern "C"
