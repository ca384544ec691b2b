#include <sherd/nn/kernels/embedding/embedding.h>

#include <sherd/kernels/device/cpu/dispatch.h>
#include <sherd/kernels/device/cpu/parallel.h>

namespace sherd::cpu {
namespace {

// Returns the row of the table, or -1 for a token of another part of the vocabulary.
int64_t row_of(const EmbeddingArgs& e, int64_t i) {
  const int64_t row = e.tokens[i] - e.begin;
  return row >= 0 && row < e.vocab ? row : -1;
}

void embedding_forward(ExecutionContext& ctx, const EmbeddingArgs& e) {
  with_activation(e.table.dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(ctx, e.count, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T* out = e.out.as<T>() + i * e.width;
        const int64_t at = row_of(e, i);
        const T* row = e.table.as<T>() + at * e.width;
        const T* position = e.positions.data == nullptr ? nullptr : e.positions.as<T>() + i % e.seq * e.width;
        if (at < 0) {
          position == nullptr ? std::fill_n(out, e.width, T(0.0f)) : std::copy_n(position, e.width, out);
          continue;
        }
        if (position == nullptr) {
          std::copy_n(row, e.width, out);
          continue;
        }
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
        if (const int64_t row = row_of(e, i); row >= 0)
          accumulate(e.dtable.as<float>() + row * e.width, from, begin, end);
        if (e.dpositions.data != nullptr)
          accumulate(e.dpositions.as<float>() + i % e.seq * e.width, from, begin, end);
      }
    });
  });
}

}  // namespace
}  // namespace sherd::cpu

namespace sherd {

const EmbeddingKernels* EmbeddingKernels::cpu() {
  static constexpr EmbeddingKernels table{
      .embedding_forward = cpu::embedding_forward,
      .embedding_backward = cpu::embedding_backward,
  };
  return &table;
}

}  // namespace sherd
