#include <sherd/kernels/ops/embedding.h>

#include "cpu.h"
#include "parallel.h"

namespace sherd::cpu {

void embedding_forward(ExecutionContext& ctx, const EmbeddingArgs& e) {
  with_activation(e.table.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(ctx, e.count, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T* out = e.out.as<T>() + i * e.width;
        const T* row = e.table.as<T>() + e.tokens[i] * e.width;
        if (e.positions.data == nullptr) {
          std::copy_n(row, e.width, out);
          continue;
        }
        const T* position = e.positions.as<T>() + i % e.seq * e.width;
#pragma omp simd
        for (int64_t c = 0; c < e.width; ++c) store(out[c], float(row[c]) + float(position[c]));
      }
    });
  });
}

void embedding_backward(ExecutionContext& ctx, const EmbeddingArgs& e) {
  with_activation(e.dout.dtype, [&](auto type) {
    using T = decltype(type);
    auto accumulate = [](float* to, const T* from, int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t c = begin; c < end; ++c) to[c] += float(from[c]);
    };
    // A token may occur anywhere, so threads share columns out, not rows.
    parallel_for(ctx, e.width, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = 0; i < e.count; ++i) {
        const T* from = e.dout.as<T>() + i * e.width;
        accumulate(e.dtable.as<float>() + e.tokens[i] * e.width, from, begin, end);
        if (e.dpositions.data != nullptr)
          accumulate(e.dpositions.as<float>() + i % e.seq * e.width, from, begin, end);
      }
    });
  });
}

}  // namespace sherd::cpu
