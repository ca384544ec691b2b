// FP32 matrix product for programs with libtorch: libtorch's BLAS instead of oneDNN.
//
// libtorch_cpu.so holds another oneDNN and exports parts of it. Its instantiations for std::call_once have
// the same names as those of the system's oneDNN, and are found first. The system's oneDNN then sets up
// libtorch's kernels instead of its own, and each of its products fails as not implemented. Programs with
// libtorch use this function instead. It is part of the adapter's single object file, which is linked before
// libraries are searched.
//
// MKL, libtorch's BLAS, selects instructions by the operands' addresses. Without a copy, bits of a small
// product would depend on where a matrix is stored, and so on its owner rank.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>

extern "C" {

void sgemm_(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k,
            const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
            const float* beta, float* c, const int* ldc);

}  // extern "C"

namespace sherd::torch::detail {
namespace {

/// Alignment, in bytes, at which MKL promises equal bits.
constexpr int64_t kAligned = 64;

/// A row-major operand of a product at an aligned address: in place, or a copy.
class AlignedOperand {
 public:
  AlignedOperand(const float* data, int64_t rows, int64_t cols, int64_t ld, bool read)
      : rows_(rows), cols_(cols), ld_(ld), given_(data) {
    if (reinterpret_cast<uintptr_t>(data) % kAligned == 0) return;
    // MKL selects by the alignment of each row, and by whether rows are adjacent.
    if (ld > cols) ld_ = cols + (ld - cols - 1) % kLine + 1;
    copy_ = std::make_unique_for_overwrite<Line[]>(static_cast<size_t>((rows * ld_ + kLine - 1) / kLine));
    if (read) copy(given_, ld, copied(), ld_);
  }
  float* data() const { return copy_ ? copied() : const_cast<float*>(given_); }
  int64_t ld() const { return ld_; }
  /// Copies the result to the given matrix.
  void store(float* to, int64_t ld) const {
    if (copy_) copy(copied(), ld_, to, ld);
  }

 private:
  static constexpr int64_t kLine = kAligned / int64_t{sizeof(float)};
  struct alignas(kAligned) Line {
    float values[kLine];
  };
  float* copied() const { return copy_[0].values; }
  void copy(const float* from, int64_t ld, float* to, int64_t to_ld) const {
    for (int64_t i = 0; i < rows_; ++i) std::copy_n(from + i * ld, cols_, to + i * to_ld);
  }

  int64_t rows_, cols_, ld_;
  const float* given_;
  std::unique_ptr<Line[]> copy_;
};

}  // namespace
}  // namespace sherd::torch::detail

extern "C" {

// As in dnnl.h, for row-major matrices. The dnnl.h in libtorch's folder is of another version.
int dnnl_sgemm(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
               int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  using sherd::torch::detail::AlignedOperand;
  constexpr int kOutOfMemory = 1, kInvalidArguments = 2;
  for (const int64_t v : {m, n, k, lda, ldb, ldc})
    if (v < 0 || v > INT32_MAX) return kInvalidArguments;
  const auto word = [](int64_t v) { return static_cast<int>(v); };
  const bool turned_a = trans_a == 'T', turned_b = trans_b == 'T';
  try {
    const AlignedOperand from(a, turned_a ? k : m, turned_a ? m : k, lda, true);
    const AlignedOperand with(b, turned_b ? n : k, turned_b ? k : n, ldb, true);
    const AlignedOperand to(c, m, n, ldc, beta != 0);
    // BLAS is column-major. There the matrices are the transposes, and the product is that of B' and A'.
    const int mm = word(m), nn = word(n), kk = word(k), la = word(from.ld()), lb = word(with.ld()),
              lc = word(to.ld());
    sgemm_(&trans_b, &trans_a, &nn, &mm, &kk, &alpha, with.data(), &lb, from.data(), &la, &beta, to.data(),
           &lc);
    to.store(c, ldc);
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  }
  return 0;
}

}  // extern "C"
