#include <sherd/nn/models/detail/key_heads.h>

#include <algorithm>

#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/nn/detail/memory.h>

namespace sherd::nn::detail {
namespace {

// Columns of a dense matrix.
struct Block {
  Tensor matrix;
  int64_t begin;
};

void copy_columns(Stream& s, const Block& to, const Block& from, int64_t width) {
  if (to.matrix.size(0) == 0 || width == 0) return;
  ops::strided_copy(s, to.matrix.flat(to.begin, to.matrix.numel()), to.matrix.size(1),
                    from.matrix.flat(from.begin, from.matrix.numel()), from.matrix.size(1), to.matrix.size(0),
                    width);
}

}  // namespace

std::vector<int64_t> key_heads(int64_t first, int64_t count, int64_t heads, int64_t kv_heads) {
  std::vector<int64_t> of_query;
  for (int64_t h = first; h < first + count; ++h) of_query.push_back(h / (heads / kv_heads));
  std::vector<int64_t> distinct = of_query;
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  const auto share = static_cast<int64_t>(distinct.size());
  if (count % share != 0) return of_query;
  for (int64_t i = 0; i < count; ++i)
    if (of_query[static_cast<size_t>(i)] != distinct[static_cast<size_t>(i / (count / share))])
      return of_query;
  return distinct;
}

Var with_key_heads(const Var& q, const Var& kv, const std::vector<int64_t>& chosen, int64_t head_dim) {
  const Tensor queries = q.value(), keys = kv.value();
  const int64_t rows = queries.size(0), width = queries.size(1), whole = keys.size(1) / 2;
  const auto count = static_cast<int64_t>(chosen.size());
  const Shape shape{rows, width + 2 * count * head_dim};
  // f(column here, column of kv) for each chosen head of k, then of v.
  const auto for_heads = [chosen, width, whole, head_dim, count](auto f) {
    for (int64_t half = 0; half < 2; ++half)
      for (int64_t i = 0; i < count; ++i)
        f(width + (half * count + i) * head_dim, half * whole + chosen[static_cast<size_t>(i)] * head_dim);
  };
  return function(
      {q, kv},
      [&](Stream& s) {
        const Tensor packed = like(queries, shape);
        copy_columns(s, {packed, 0}, {queries, 0}, width);
        for_heads([&](int64_t here, int64_t there) {
          copy_columns(s, {packed, here}, {keys, there}, head_dim);
        });
        return packed;
      },
      [device = &queries.device(), dtype = queries.dtype(), shape, width, whole, head_dim, for_heads](
          Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        const Tensor d = call.output().tensor(*device, shape, dtype);
        const Tensor dq = like(d, {shape[0], width}), dkv = like(d, {shape[0], 2 * whole});
        copy_columns(s, {dq, 0}, {d, 0}, width);
        ops::fill(s, dkv, 0);
        const Tensor sum = like(d, {shape[0], head_dim}), more = like(sum);
        int64_t latest = -1;  // equal ones are neighbours
        for_heads([&](int64_t here, int64_t there) {
          copy_columns(s, {there == latest ? more : sum, 0}, {d, here}, head_dim);
          if (there == latest) ops::add(s, sum, sum, more);
          copy_columns(s, {dkv, there}, {sum, 0}, head_dim);
          latest = there;
        });
        return {dq, dkv};
      });
}

}  // namespace sherd::nn::detail
