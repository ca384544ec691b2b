#include <sherd/optim/whole/detail/tensor_parts.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include <sherd/comm/launcher.h>
#include <sherd/kernels/device/trace.h>
#include <sherd/kernels/ops.h>

#include "support/toy_model.h"

namespace sherd {
namespace {

// Element (matrix, row, column) of the whole matrices.
float element(int64_t matrix, int64_t row, int64_t col) {
  return static_cast<float>(matrix * 10'000 + row * 100 + col);
}

TEST(TensorParts, AreCopiedByOneStridedCopyEach) {
  constexpr int kRanks = 4;
  constexpr int64_t kCount = 3, kRows = 5, kCols = 7;
  for (const int dim : {0, 1}) {
    SCOPED_TRACE(dim);
    test::launch(kRanks, [&](RankContext& r) {
      const bool by_rows = dim == 0;
      const int64_t rank = r.world->rank(), first_row = by_rows ? rank * kRows : 0,
                    first_col = by_rows ? 0 : rank * kCols;
      std::vector<float> part;
      for (int64_t m = 0; m < kCount; ++m)
        for (int64_t row = 0; row < kRows; ++row)
          for (int64_t col = 0; col < kCols; ++col)
            part.push_back(element(m, first_row + row, first_col + col));
      auto trace = std::make_shared<Trace>();
      r.device->set_trace(trace);
      Stream& s = r.device->compute();
      const Tensor in = Tensor::empty(*r.device, {kCount, kRows, kCols}, DType::f32, "test"),
                   out = Tensor::empty(*r.device, in.shape(), DType::f32, "test");
      ops::copy_from_host(s, in, part.data(), in.nbytes());

      MatrixBatch batch;
      batch.rows = kRows, batch.cols = kCols, batch.tensor_dim = dim, batch.tensor_parts = kRanks;
      std::vector<float> seen;
      trace->set_enabled(true);
      compute_gathered(s, *r.world, MatrixBuffers(*r.device, "test"), out, in, batch,
                       [&](const Tensor& result, const Tensor& whole) {
                         seen = ops::to_floats(s, whole);
                         ops::copy(s, result, whole);
                       });
      EXPECT_EQ(ops::to_floats(s, out), part);
      const int64_t rows = by_rows ? kRanks * kRows : kRows, cols = by_rows ? kCols : kRanks * kCols;
      std::vector<float> whole;
      for (int64_t m = 0; m < kCount; ++m)
        for (int64_t row = 0; row < rows; ++row)
          for (int64_t col = 0; col < cols; ++col) whole.push_back(element(m, row, col));
      EXPECT_EQ(seen, whole);
      // One for each part, one for the result. On a GPU, copy_segments() starts a kernel for every 48 runs.
      const auto records = trace->records();
      EXPECT_EQ(std::count_if(records.begin(), records.end(),
                              [](const TraceRecord& t) { return t.what == "strided_copy"; }),
                kRanks + 1);
    });
  }
}

}  // namespace
}  // namespace sherd
