#include <sherd/nn/dropout.h>

#include <fmt/format.h>

#include <memory>
#include <utility>

#include <sherd/nn/detail/memory.h>

namespace sherd::nn {

void RandomState::begin(int64_t step, int64_t first_row) {
  if (first_row < 0)
    throw InvalidArgument(
        fmt::format("RandomState::begin(): the first row {} is negative; it counts the rows of the "
                    "step's whole batch from 0",
                    first_row));
  step_ = step;
  first_row_ = first_row;
  calls_.clear();
}

DropoutKey RandomState::next(std::string_view site) {
  const uint64_t key = DropoutKey::make(seed_, step_, site);
  return {key, calls_[key]++, first_row_};
}

Var dropout(const Var& x, float p, const DropoutKey& key) {
  if (!(p >= 0 && p < 1))
    throw InvalidArgument(fmt::format("dropout: the probability {} to drop an element is not in [0, 1)", p));
  if (p == 0 || x.tape() == nullptr || !x.tape()->training()) return x;
  const auto drop = [p, key](Stream& s, const Tensor& from) {
    Tensor to = detail::like(from);
    ops::dropout(s, to, from, p, key);
    return to;
  };
  const Tensor in = x.value();
  return function(
      {x}, [&](Stream& s) { return drop(s, in); },
      [drop, device = &in.device(), shape = in.shape(), dtype = in.dtype()](
          Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        return {drop(s, call.output().tensor(*device, shape, dtype))};
      });
}

Var dropout(const Var& x, float p, RandomState& random, std::string_view site) {
  if (x.tape() == nullptr) return dropout(x, p, DropoutKey{});  // evaluation; no scope would count it again
  // A scope that is recomputed counts the same calls again.
  x.tape()->repeat(&random, [&random] {
    return [then = std::make_shared<RandomState>(random), &random] { std::swap(*then, random); };
  });
  return dropout(x, p, random.next(site));
}

}  // namespace sherd::nn
