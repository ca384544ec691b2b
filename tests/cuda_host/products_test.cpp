// The products under Newton-Schulz: their ways, their bits, and what happens when the libraries fail. Runs on
// a real GPU too, where it compares the kernel for compute capability 9.0 with the others.
#include <sherd/kernels/device/cuda/queue.h>
#include <sherd/kernels/gemm/cuda_matmul.h>
#include <sherd/kernels/orthogonalize/cuda/products.h>
#include <sherd/kernels/orthogonalize/cuda/symmetric.h>
#include <sherd/kernels/orthogonalize/cuda/symmetric_tiles.h>

#include "../kernels/matrices.h"
#include "support/message_of.h"

#ifdef TEST_CUDA_EMULATED
#include <cublasLt.h>
#include <cuda_host/fake.h>
#endif

namespace sherd::test {
namespace {

using cuda::Factor;
using cuda::Matrices;
using cuda::Terms;

struct CudaLab : Lab {
  explicit CudaLab(SymmetricProducts symmetric_products = SymmetricProducts::blocks)
      : Lab(make_cuda_device({.label = "lab", .symmetric_products = symmetric_products})) {}
  void run(std::function<void(ExecutionContext&)> work) {
    s.submit("test", std::move(work));
    s.synchronize();
  }
  /// Larger matrices repeat this many values, a prime number: drawing takes 20 times as long as copying.
  static constexpr int64_t kDrawn = 65537;
  /// [batch, rows, cols] with padded rows, the padding included in the tensor.
  struct Padded {
    Tensor tensor;
    Matrices matrices;
  };
  Padded padded(int64_t batch, int64_t rows, int64_t cols, DType type, unsigned seed,
                bool symmetric = false) {
    const int64_t ld = cuda::padded_ld(cols, type);
    Floats values(static_cast<size_t>(batch * rows * ld), NAN);
    for (int64_t b = 0; b < batch; ++b) {  // each matrix by its own seed, whatever the batch
      const Floats x = normal(std::min(rows * cols, kDrawn), seed + static_cast<unsigned>(b));
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j)
          values[static_cast<size_t>((b * rows + i) * ld + j)] =
              x[static_cast<size_t>((symmetric && j > i ? j * cols + i : i * cols + j) % kDrawn)];
    }
    const Tensor t = tensor({batch, rows, ld}, values, type);
    return {t, {t.raw(), type, batch, rows, cols, ld, rows * ld}};
  }
  /// The elements without the padding, NaN where nothing was written.
  Floats inner(const Padded& p) {
    const Floats all = floats(p.tensor);
    Floats out;
    for (size_t i = 0; i < all.size(); ++i)
      if (static_cast<int64_t>(i) % p.matrices.ld < p.matrices.cols) out.push_back(all[i]);
    return out;
  }
};

enum class Way { whole, blocks, chosen };

/// z = -0.5 r r + 2 r (k is 0), or the Gram matrix of x as it is stored. The addend is another matrix where the type of
/// the result is. `width`: of the tiles, where `way` is chosen and the chip has such; 0 as they are chosen.
Floats symmetric(CudaLab& lab, Way way, DType type, int64_t batch, int64_t n, int64_t k, bool transposed,
                 DType result = DType::u8, int width = 0) {
  const bool square = k == 0;
  const auto x = square ? lab.padded(batch, n, n, type, 1, true)
                        : lab.padded(batch, transposed ? k : n, transposed ? n : k, type, 1);
  const DType out = result == DType::u8 ? type : result;
  const auto c = lab.padded(batch, n, n, out, 77);
  const auto addend = square && out != type ? lab.padded(batch, n, n, out, 5, true) : x;
  ops::fill(lab.s, c.tensor, NAN);
  const Terms terms{.alpha = square ? -0.5 : 1, .beta = square ? 2.0 : 0, .addend = &addend.matrices};
  const Factor a{x.matrices, transposed}, b{x.matrices, !square && !transposed};
  lab.run([&](ExecutionContext& context) {
    switch (way) {
      case Way::whole:
        product(context, a, b, terms, c.matrices);
        return mirror(context, c.matrices);
      case Way::blocks:
        lower_blocks(context, a, b, terms, c.matrices);
        return mirror(context, c.matrices);
      case Way::chosen:
        if (const cuda::Chip& chip = cuda::queue_of(context).chip();
            chip.symmetric == SymmetricProducts::hopper) {  // or the blocks would do it, unnoticed
          EXPECT_TRUE(symmetric_hopper_available(chip, a, b, terms, c.matrices));
          if (width > 0) return symmetric_hopper(context, a, b, terms, c.matrices, width);
        }
        return symmetric_product(context, a, b, terms, c.matrices);
    }
  });
  for (const float v : lab.floats(c.tensor.rows(0, 1).flat(n - 1, n)))  // (0, n - 1): the mirror's
    EXPECT_TRUE(std::isfinite(v));
  return lab.inner(c);
}

TEST(Products, BlocksAreTheWholeProduct) {
  CudaLab lab;
  for (DType type : {DType::f32, DType::f16, DType::bf16})
    for (int64_t n : {256, 257, 250, 700})  // equal blocks; a larger, a smaller and a much smaller last one
      for (auto [k, transposed] :
           std::initializer_list<std::pair<int64_t, bool>>{{0, false}, {40, false}, {40, true}}) {
        if (n == 700 && (type != DType::f16 || k != 40)) continue;
        const Floats got = symmetric(lab, Way::blocks, type, 1, n, k, transposed);
        const Floats want = symmetric(lab, Way::whole, type, 1, n, k, transposed);
        // Terms of size sqrt(k), rounded once to the type.
        const double e = type == DType::f32 ? 0x1p-20 : type == DType::f16 ? 0x1p-10 : 0x1p-7;
        expect_close(got, want, e * std::sqrt(double(k ? k : n)), name_of(type) + (" " + std::to_string(n)));
        for (int64_t i = 0; i < n; ++i)
          for (int64_t j = 0; j < i; ++j)
            ASSERT_EQ(got[static_cast<size_t>(i * n + j)], got[static_cast<size_t>(j * n + i)])
                << i << " " << j;
      }
}

TEST(Products, NeitherBatchNorPaddingMatters) {
  CudaLab lab;
  for (Way way : {Way::whole, Way::blocks})
    for (DType type : {DType::f32, DType::f16}) {
      const int64_t n = 257;
      const Floats one = symmetric(lab, way, type, 1, n, 20, false),
                   three = symmetric(lab, way, type, 3, n, 20, false);
      ASSERT_EQ(one.size() * 3, three.size());
      EXPECT_EQ(bits(one), bits(Floats(three.begin(), three.begin() + n * n)));
    }
}

TEST(Products, MirrorWritesOnlyAboveTheDiagonal) {
  CudaLab lab;
  for (DType type : {DType::f32, DType::f16, DType::bf16})
    for (int64_t n : {1, 2, 63, 64, 65, 130}) {
      const auto m = lab.padded(2, n, n, type, 5);
      const Floats before = lab.inner(m);
      lab.run([&](ExecutionContext& context) { cuda::mirror(context, m.matrices); });
      const Floats after = lab.inner(m);
      for (int64_t b = 0; b < 2; ++b)
        for (int64_t i = 0; i < n; ++i)
          for (int64_t j = 0; j < n; ++j)
            ASSERT_EQ(after[static_cast<size_t>((b * n + i) * n + j)],
                      before[static_cast<size_t>((b * n + std::max(i, j)) * n + std::min(i, j))]);
      const Floats all = lab.floats(m.tensor);
      for (size_t i = 0; i < all.size(); ++i)
        if (static_cast<int64_t>(i) % m.matrices.ld >= n) {
          ASSERT_TRUE(std::isnan(all[i])) << "padding " << i;
        }
    }
}

// Matrices of the kernel for 9.0 have up to two billion elements: drawing them all took two minutes of one host thread.
TEST(Products, LargeMatricesRepeatTheirFirstElements) {
  CudaLab lab;
  const Floats all = lab.inner(lab.padded(1, 300, 300, DType::f16, 1));
  ASSERT_LT(CudaLab::kDrawn, static_cast<int64_t>(all.size()));
  EXPECT_EQ(Floats(all.begin() + CudaLab::kDrawn, all.end()),
            Floats(all.begin(), all.end() - CudaLab::kDrawn));
}

#ifdef TEST_CUDA_EMULATED
/// Scope in which the imitated chips have compute capability 9.0 and that many multiprocessors.
struct Hopper {
  explicit Hopper(int multiprocessors = 132) {
    setenv("SHERD_HOST_CUDA_CAPABILITY", "90", 1);
    setenv("SHERD_HOST_CUDA_MULTIPROCESSORS", std::to_string(multiprocessors).c_str(), 1);
  }
  ~Hopper() {
    unsetenv("SHERD_HOST_CUDA_CAPABILITY");
    unsetenv("SHERD_HOST_CUDA_MULTIPROCESSORS");
  }
};
#else
struct Hopper {
  explicit Hopper(int = 0) {}
};
#endif

// On any other chip the device uses blocks.
bool is_hopper(CudaLab& lab) {
  bool is = false;
  lab.run([&](ExecutionContext& context) {
    is = cuda::queue_of(context).chip().symmetric == SymmetricProducts::hopper;
  });
  return is;
}

TEST(SymmetricHopper, IsTheWholeProduct) {
  [[maybe_unused]] const Hopper chip{};
  const auto hopper = std::make_unique<CudaLab>(SymmetricProducts::hopper);
  if (!is_hopper(*hopper)) GTEST_SKIP() << "not a GPU of compute capability 9.0";
  CudaLab lab;
  // Less than a tile, whole tiles, a little more; a ring of stages that goes round (k of 1000).
  const std::vector<int64_t> sizes =
      kEmulated ? std::vector<int64_t>{1, 129, 256, 300}
                : std::vector<int64_t>{1, 64, 128, 129, 256, 257, 300, 384, 1000, 2048, 4096};
  for (DType type : {DType::f16, DType::bf16})
    for (int64_t n : sizes)
      for (int64_t k : {0, 8, 64, 72, 1000})
        for (DType result : {type, DType::f32}) {
          const std::string what = std::string(name_of(type)) + " -> " + name_of(result) + ", n " +
                                   std::to_string(n) + ", k " + std::to_string(k);
          const Floats got = symmetric(*hopper, Way::chosen, type, 1, n, k, false, result);
          const Floats want = symmetric(lab, Way::whole, type, 1, n, k, false, result);
          const double e = result == DType::f32 ? 0x1p-18 : type == DType::f16 ? 0x1p-10 : 0x1p-7;
          expect_close(got, want, e * std::sqrt(double(k ? k : n)), what);
          for (int64_t i = 0; i < n; ++i)
            for (int64_t j = 0; j < i; ++j)
              ASSERT_EQ(got[static_cast<size_t>(i * n + j)], got[static_cast<size_t>(j * n + i)])
                  << what << ": " << i << " " << j;
          if (n > (kEmulated ? 257 : 1000)) continue;  // slow
          const Floats three = symmetric(*hopper, Way::chosen, type, 3, n, k, false, result);
          EXPECT_EQ(bits(got), bits(Floats(three.begin(), three.begin() + n * n))) << what;
        }
}

// A batch may be done in other tiles than one of its matrices alone. Blocks have one tile, an odd or an even number;
// k has fewer or more pieces than the ring has stages.
TEST(SymmetricHopper, TilesOfAnyWidthGiveTheSameBits) {
  [[maybe_unused]] const Hopper chip{};
  const auto reference = std::make_unique<CudaLab>(SymmetricProducts::hopper);
  if (!is_hopper(*reference)) GTEST_SKIP() << "not a GPU of compute capability 9.0";
  struct Product {
    int64_t n, batch, k;
    int multiprocessors;  // of the emulated chip, whose blocks share the tiles
  };
  const std::vector<Product> cases =
      kEmulated ? std::vector<Product>{{300, 1, 72, 132},
                                       {150, 3, 72, 2},
                                       {150, 3, 8, 1},
                                       {300, 1, 450, 1},
                                       {150, 3, 0, 2}}
                // Blocks have several tiles each, on 132 multiprocessors as well.
                : std::vector<Product>{{300, 1, 72, 0},  {150, 3, 72, 0},  {1000, 32, 72, 0},
                                       {4096, 1, 72, 0}, {1000, 32, 8, 0}, {1000, 32, 0, 0}};
  for (const Product& c : cases) {
    const Hopper some(c.multiprocessors);
    const auto hopper = std::make_unique<CudaLab>(SymmetricProducts::hopper);
    for (DType type : {DType::f16, DType::bf16})
      for (DType result : {type, DType::f32}) {
        const Floats want = symmetric(*reference, Way::chosen, type, c.batch, c.n, c.k, false, result, 256);
        for (const int width : cuda::kTileWidths)
          EXPECT_EQ(bits(symmetric(*hopper, Way::chosen, type, c.batch, c.n, c.k, false, result, width)),
                    bits(want))
              << name_of(type) << " -> " << name_of(result) << ", " << c.batch << " of " << c.n << ", k "
              << c.k << " by " << width << " on " << c.multiprocessors;
      }
  }
}

#ifdef TEST_CUDA_EMULATED

TEST(SymmetricHopper, IsReplacedOnOtherChipsAndUnknownWaysAreRefused) {
  for (const SymmetricProducts way : {SymmetricProducts::hopper, SymmetricProducts::automatic}) {
    CudaLab other(way);
    EXPECT_FALSE(is_hopper(other)) << name_of(way);
    const Hopper chip;
    CudaLab lab(way);
    EXPECT_TRUE(is_hopper(lab)) << name_of(way);
  }
  EXPECT_THROW(CudaLab(static_cast<SymmetricProducts>(7)), InvalidArgument);
}

void multiply(CudaLab& lab, int64_t batch, std::string* message = nullptr) {
  const auto a = lab.padded(batch, 33, 20, DType::f32, 1), b = lab.padded(batch, 20, 57, DType::f32, 9),
             c = lab.padded(batch, 33, 57, DType::f32, 17);
  ops::fill(lab.s, c.tensor, NAN);
  try {
    lab.run([&](ExecutionContext& context) {
      cuda::product(context, {a.matrices}, {b.matrices}, {}, c.matrices);
    });
  } catch (const CudaError& e) {
    if (message) *message = e.what();
  }
}

TEST(Matmul, SearchesOncePerShape) {
  CudaLab lab;
  cuda_host::reset_calls();
  multiply(lab, 1);
  multiply(lab, 1);
  multiply(lab, 4);
  multiply(lab, 4);
  EXPECT_EQ(cuda_host::calls()["cublasLtMatmulAlgoGetHeuristic"], 1);
  EXPECT_EQ(cuda_host::calls()["cublasLtMatmulAlgoCheck"], 2);  // that it does one, and four
  EXPECT_EQ(cuda_host::calls()["cublasLtMatmul"], 4);
}

// The best algorithm for one matrix is wrong for a batch, and all batches must run the same one.
TEST(Matmul, TheAlgorithmIsChosenForANominalBatch) {
  CudaLab lab;
  for (const int64_t batch : {1, 3}) {
    cuda_host::reset_calls();
    CudaLab fresh;
    multiply(fresh, batch);
    EXPECT_EQ(cuda_host::calls()["cublasLtMatmulAlgoGetHeuristic of a batch"], 1) << batch;
    EXPECT_EQ(cuda_host::calls()["cublasLtMatmulAlgoGetHeuristic"], 1) << batch;
  }
  // The layers of a model are single products.
  const Tensor a = lab.random({16, 32}, 1), b = lab.random({32, 8}, 2), c = lab.empty({16, 8});
  cuda_host::reset_calls();
  ops::gemm(lab.s, c, a, false, b, false);
  lab.s.synchronize();
  EXPECT_EQ(cuda_host::calls()["cublasLtMatmulAlgoGetHeuristic"], 1);
  EXPECT_EQ(cuda_host::calls()["cublasLtMatmulAlgoGetHeuristic of a batch"], 0);
}

TEST(Matmul, WhatANominalBatchHasNoAlgorithmForTakesThatOfOneMatrix) {
  for (const char* call : {"cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmulAlgoCheck"}) {
    CudaLab lab;
    cuda_host::reset_calls();
    cuda_host::fail_call(call, 1, CUBLAS_STATUS_NOT_SUPPORTED);
    std::string message;
    multiply(lab, 4, &message);
    EXPECT_EQ(message, "");
    EXPECT_EQ(cuda_host::calls()["cublasLtMatmulAlgoGetHeuristic"], 2) << call;
    EXPECT_EQ(cuda_host::calls()["cublasLtMatmul"], 1) << call;
  }
}

// Misaligned operands are copied first, so that every address and every batch takes the same algorithm.
TEST(Matmul, PlaceAndBatchDoNotChooseTheAlgorithm) {
  CudaLab lab;
  for (int64_t cols : {8, 6}) {
    const Tensor x = lab.random({3 * 4 * cols + 1}, 1), gram = lab.empty({3 * 16 + 1}),
                 q = lab.random({49}, 2);
    cuda_host::reset_calls();
    for (int64_t shift : {0, 1})
      for (int64_t batch : {1, 3}) {
        auto part = [&](const Tensor& t, int64_t rows, int64_t columns) {
          return t.flat(shift, shift + batch * rows * columns).view({batch, rows, columns});
        };
        ops::gram_product(lab.s, part(gram, 4, 4), part(x, 4, cols), false);
        const Tensor out = lab.empty({3 * 4 * cols + 1});
        ops::gram_apply(lab.s, part(out, 4, cols), part(x, 4, cols), part(q, 4, 4), false);
        lab.s.synchronize();
      }
    EXPECT_EQ(cuda_host::calls()["cublasLtMatmulAlgoGetHeuristic"], 2) << cols;
  }
}

TEST(Matmul, WorksOneByOneWhereTheAlgorithmTakesNoBatch) {
  CudaLab lab;
  cuda_host::reset_calls();
  cuda_host::fail_call("cublasLtMatmulAlgoCheck", 2, CUBLAS_STATUS_NOT_SUPPORTED);
  multiply(lab, 4);
  EXPECT_EQ(cuda_host::calls()["cublasLtMatmul"], 4);
}

TEST(Matmul, NoAlgorithmIsAnErrorWithTheProductInWords) {
  CudaLab lab;
  std::string message;
  cuda_host::fail_call("cublasLtMatmulAlgoGetHeuristic of a batch", 1, CUBLAS_STATUS_NOT_SUPPORTED);
  cuda_host::fail_call("cublasLtMatmulAlgoGetHeuristic", 2, CUBLAS_STATUS_NOT_SUPPORTED);  // of one matrix
  multiply(lab, 1, &message);
  EXPECT_THAT(message, HasSubstr("no algorithm for [33, 20] x [20, 57] -> [33, 57]"));
  EXPECT_THAT(message, HasSubstr("f32 -> f32"));
}

struct Epilogue {
  bool bias, gelu, pre, backward;
};
constexpr Epilogue kEpilogues[] = {{true, false, false, false}, {false, true, false, false},
                                   {true, true, false, false},  {false, true, true, false},
                                   {true, true, true, false},   {false, false, false, true}};

/// A bf16 product with an epilogue, in one call or in as many as it has parts: C, and pre where it is written.
std::vector<uint32_t> with_epilogue(CudaLab& lab, const Epilogue& e, bool one_call) {
  const Shape shape{16, 24};
  const Tensor a = lab.random({16, 40}, 1, DType::bf16), b = lab.random({40, 24}, 2, DType::bf16),
               bias = lab.random({24}, 3, DType::bf16), read = lab.random(shape, 4, DType::bf16);
  const Tensor c = lab.full(shape, NAN, DType::bf16), pre = lab.full(shape, NAN, DType::bf16);
  if (!one_call) {
    const Tensor& sum = e.gelu ? pre : c;
    ops::gemm(lab.s, sum, a, false, b, false);
    if (e.bias) ops::add_bias(lab.s, sum, bias);
    if (e.gelu) ops::gelu_forward(lab.s, c, sum);
    if (e.backward) ops::gelu_backward(lab.s, c, c, read);
  } else if (e.gelu) {
    ops::gemm_gelu(lab.s, c, e.pre ? pre : Tensor(), a, false, b, false, e.bias ? bias : Tensor());
  } else if (e.backward) {
    ops::gemm_gelu_backward(lab.s, c, a, false, b, false, read);
  } else {
    ops::gemm_bias(lab.s, c, a, false, b, false, bias);
  }
  Floats all = lab.floats(c);
  if (e.pre)
    for (const float v : lab.floats(pre)) all.push_back(v);
  return bits(all);
}

TEST(Matmul, AnEpilogueThatCublasltDoesNotHaveIsDoneInSeparateCallsFromThenOn) {
  const char* const asked = "cublasLtMatmulAlgoGetHeuristic of an epilogue";
  CudaLab lab, whole;
  for (const Epilogue& e : kEpilogues) {
    const auto what = testing::PrintToString(std::vector<bool>{e.bias, e.gelu, e.pre, e.backward});
    const auto separate = with_epilogue(lab, e, false);
    EXPECT_NE(with_epilogue(whole, e, true), separate) << what << ": nothing tells the two ways apart";
    cuda_host::reset_calls();
    cuda_host::fail_call(asked, 1, CUBLAS_STATUS_NOT_SUPPORTED);
    for (int turn = 0; turn < 2; ++turn) EXPECT_EQ(with_epilogue(lab, e, true), separate) << what;
    EXPECT_EQ(cuda_host::calls()[asked], 1) << what;
  }
}

TEST(Matmul, AFailureOfTheSearchForAnEpilogueIsAnError) {
  CudaLab lab;
  cuda_host::fail_call("cublasLtMatmulAlgoGetHeuristic of an epilogue", 1, CUBLAS_STATUS_INTERNAL_ERROR);
  EXPECT_THROW(with_epilogue(lab, kEpilogues[0], true), CudaError);
}

TEST(Polar, AStreamHasOneDeterministicHandle) {
  CudaLab lab;
  cuda_host::reset_calls();
  const Tensor m = lab.random({2, 4, 6}, 1), out = lab.empty({2, 4, 6}), status = lab.empty({2}, DType::i32);
  for (int turn = 0; turn < 2; ++turn)
    ops::orthogonalize(lab.s, out, m, status, {.method = Orthogonalizer::svd});
  lab.s.synchronize();
  for (const char* once : {"cusolverDnCreate", "cusolverDnCreateParams", "cusolverDnSetDeterministicMode"})
    EXPECT_EQ(cuda_host::calls()[once], 1) << once;
}

TEST(Polar, NoConvergenceGivesZerosAndIsReported) {
  CudaLab lab;
  const Tensor in = lab.random({3, 4, 6}, 1), out = lab.full({3, 4, 6}, NAN),
               status = lab.ints({3}, {-1, -1, -1});
  cuda_host::fail_call("cusolverDnXgesvd", 2, cuda_host::kNoConvergence + 3);
  ops::orthogonalize(lab.s, out, in, status, {.method = Orthogonalizer::svd});
  std::vector<int32_t> codes(3);
  ops::copy_to_host(lab.s, codes.data(), status);
  EXPECT_EQ(codes, (std::vector<int32_t>{0, 2, 0}));
  EXPECT_EQ(lab.floats(out.rows(1, 2)), Floats(24, 0));
  EXPECT_NE(lab.floats(out.rows(2, 3)), Floats(24, 0));
}

#endif

}  // namespace
}  // namespace sherd::test
