#include <sherd/nn/models/draw.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/kernels/random/random.h>

namespace sherd::nn {
namespace {

/// In [0, 1), a pure function of its arguments.
double uniform(uint64_t seed, int64_t index) {
  const uint64_t key = hash64(seed, "sample");
  const auto words = philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0},
                                {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
  return words[0] * 0x1p-32;
}

/// The number of the largest. @throws InvalidArgument.
size_t largest_of(std::span<const float> logits) {
  size_t largest = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<float>::infinity())
      throw InvalidArgument(
          fmt::format("the logit of token {} is {}: the model's weights are broken, or its activations "
                      "overflow",
                      i, logits[i]));
    if (logits[i] > logits[largest]) largest = i;
  }
  if (logits.empty() || logits[largest] == -std::numeric_limits<float>::infinity())
    throw InvalidArgument(
        fmt::format("no token can be drawn: of {} logits none is above -infinity", logits.size()));
  return largest;
}

/// Sets the weights of all but the most probable tokens to 0.
void keep_top(std::vector<float>& weights, const DrawOptions& o) {
  const auto all = static_cast<int64_t>(weights.size());
  const int64_t most = o.top_k == 0 ? all : std::min(o.top_k, all);
  if (most == all && o.top_p >= 1) return;
  std::vector<int32_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  const auto weight = [&](int32_t i) { return weights[static_cast<size_t>(i)]; };
  const auto before = [&](int32_t a, int32_t b) {
    return weight(a) != weight(b) ? weight(a) > weight(b) : a < b;
  };
  std::partial_sort(order.begin(), order.begin() + most, order.end(), before);
  double total = 0, sum = 0;
  for (int64_t i = 0; i < most; ++i) total += weight(order[static_cast<size_t>(i)]);
  int64_t kept = 0;
  while (kept < most && (kept == 0 || sum < double{o.top_p} * total))
    sum += weight(order[static_cast<size_t>(kept++)]);
  for (int64_t i = kept; i < all; ++i) weights[static_cast<size_t>(order[static_cast<size_t>(i)])] = 0;
}

}  // namespace

void check(const DrawOptions& o) {
  if (!(o.temperature >= 0) || std::isinf(o.temperature))
    throw InvalidArgument(fmt::format("temperature {}: must be 0 (greedy) or more", o.temperature));
  if (!(o.top_p > 0 && o.top_p <= 1))
    throw InvalidArgument(fmt::format("top_p {}: must be above 0 and at most 1", o.top_p));
  if (o.top_k < 0) throw InvalidArgument(fmt::format("top_k {}: must be 0 (all) or more", o.top_k));
}

int32_t draw_token(std::span<const float> logits, const DrawOptions& o, uint64_t seed, int64_t position) {
  check(o);
  const size_t largest = largest_of(logits);
  if (o.temperature == 0) return static_cast<int32_t>(largest);
  std::vector<float> weights(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    weights[i] = std::exp((logits[i] - logits[largest]) / o.temperature);
  keep_top(weights, o);
  double total = 0;
  for (const float w : weights) total += w;
  double left = uniform(seed, position) * total;
  // Rounding may leave something behind the last token: then it is the most probable one.
  for (size_t i = 0; i < weights.size(); ++i)
    if ((left -= weights[i]) < 0) return static_cast<int32_t>(i);
  return static_cast<int32_t>(largest);
}

}  // namespace sherd::nn
