#include <sherd/nn/detail/reduced.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include <sherd/nn/detail/memory.h>

namespace sherd::nn::detail {

std::vector<int64_t> dims_of(const char* function, const Shape& shape, const std::vector<int64_t>& dims) {
  const auto count = static_cast<int64_t>(shape.size());
  std::vector<int64_t> all;
  for (const int64_t d : dims) all.push_back(d < 0 ? d + count : d);
  std::sort(all.begin(), all.end());
  if (all.empty() || all.front() < 0 || all.back() >= count ||
      std::adjacent_find(all.begin(), all.end()) != all.end())
    throw InvalidArgument(
        fmt::format("{}: dimensions {} of a value {}; name one or more in [{}, {}), each once", function,
                    dims, to_string(shape), -count, count));
  return all;
}

Shape with_ones(Shape shape, const std::vector<int64_t>& dims) {
  for (const int64_t d : dims) shape[static_cast<size_t>(d)] = 1;
  return shape;
}

Tensor reduced(Stream& s, Reduction op, const Tensor& x, const std::vector<int64_t>& dims, double factor) {
  Tensor from = x;
  // Runs of neighbouring dimensions, the last first: what remains is smaller.
  for (size_t end = dims.size(); end > 0;) {
    size_t begin = end - 1;
    while (begin > 0 && dims[begin - 1] == dims[begin] - 1) --begin;
    const std::vector<int64_t> run(dims.begin() + static_cast<std::ptrdiff_t>(begin),
                                   dims.begin() + static_cast<std::ptrdiff_t>(end));
    const Shape shape = with_ones(from.shape(), run);
    int64_t outer = 1, n = 1, inner = 1;
    for (int64_t d = 0; d < from.dim(); ++d)
      (d < run.front() ? outer : d > run.back() ? inner : n) *= from.size(d);
    const bool last = begin == 0;
    const Tensor to = last ? like(x, shape) : like_wide(x, shape);
    ops::reduce_dim(s, op, to, from, outer, n, inner, last ? factor : 1);
    from = to;
    end = begin;
  }
  return from;
}

Gradient sum_to(Stream& s, const Gradient& g, const Shape& shape, Device& device, const Shape& full,
                DType dtype) {
  if (shape == full) return g;
  if (g.constant() && numel_of(shape) > 0)
    return Gradient::constant(*g.constant() * static_cast<float>(numel_of(full) / numel_of(shape)));
  std::vector<int64_t> dims;
  const size_t missing = full.size() - shape.size();
  for (size_t d = 0; d < full.size(); ++d)
    if (d < missing || (shape[d - missing] == 1 && full[d] != 1)) dims.push_back(static_cast<int64_t>(d));
  const Tensor dy = g.tensor(device, full, dtype);
  return dims.empty() ? dy.view(shape) : reduced(s, Reduction::sum, dy, dims).view(shape);
}

}  // namespace sherd::nn::detail
