// Generation with kept keys and values: token by token, or in parts, is the whole sequence.
#include <sherd/nn/kv_cache.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "nets.h"
#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

using nn::Var;
using Floats = std::vector<float>;

constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 6, kSeq = 13, kColumns = (kHeads + 2 * kKvHeads) * kDim;

Tensor random_tensor(Device& device, Shape shape, uint64_t seed, DType dtype) {
  Tensor x = Tensor::empty(device, shape, DType::f32, "test"),
         y = Tensor::empty(device, shape, dtype, "test");
  ops::random_normal(device.compute(), x, 0, seed, "x", 0, 1);
  ops::cast(device.compute(), y, x);
  device.compute().synchronize();
  return y;
}

/// Two layers, the second on what the first one made: rotary positions and grouped queries.
Var layers(const Var& x, const std::vector<Tensor>& weights, const Tensor& frequencies, nn::KvCache* cache) {
  Stream& s = x.stream();
  Var h = x;
  for (size_t i = 0; i < weights.size(); ++i) {
    nn::KvCache::Layer* const kept = cache != nullptr ? &cache->layer(static_cast<int64_t>(i)) : nullptr;
    const Tensor qkv = Tensor::empty(x.device(), {x.size(0), kColumns}, x.dtype(), "test");
    ops::gemm(s, qkv, h.value(), false, weights[i], true);
    const Var turned =
        nn::rope(qkv, frequencies,
                 {.heads = kHeads + kKvHeads, .first_position = kept != nullptr ? kept->length() : 0});
    h = nn::attention(turned, {.heads = kHeads, .kv_heads = kKvHeads, .cache = kept});
  }
  return h;
}

struct CacheSetting {
  explicit CacheSetting(DType dtype) : type(dtype) {
    for (uint64_t i = 0; i < 2; ++i)
      weights.push_back(random_tensor(*device, {kColumns, kHeads * kDim}, 10 + i, dtype));
  }
  Floats whole() {
    return ops::to_floats(device->compute(), layers(x, weights, frequencies, nullptr).value());
  }
  /// In parts of so many rows.
  Floats parts(nn::KvCache& cache, const std::vector<int64_t>& rows) {
    Floats all;
    int64_t at = 0;
    for (const int64_t n : rows) {
      const Floats some =
          ops::to_floats(device->compute(), layers(x.rows(at, at + n), weights, frequencies, &cache).value());
      all.insert(all.end(), some.begin(), some.end());
      at += n;
    }
    return all;
  }
  nn::KvCache cache(int64_t capacity) { return {*device, 2, capacity, kKvHeads, kDim, type}; }

  std::shared_ptr<Device> device = make_cpu_device();
  DType type;
  Tensor x = random_tensor(*device, {kSeq, kHeads* kDim}, 1, type);
  std::vector<Tensor> weights;
  Tensor frequencies = nn::rope_table(*device, ops::rope_frequencies(kDim));
};

// Values are sums of 24 products of numbers near 1, some 5 in size; larger ones round by as much more. f32: orders of sums differ, a dozen
// roundings through two layers and a softmax that scores of some 10 make sharper by that much: 1e-4. bf16: a
// rounding to another side in the first layer moves scores, of size 10, by an epsilon of theirs.
double tolerance(DType type) { return type == DType::f32 ? 1e-4 : 10 * 0x1p-7; }

TEST(KvCache, TokenByTokenIsTheWholeSequence) {
  for (const DType type : {DType::f32, DType::bf16}) {
    CacheSetting setting(type);
    const Floats whole = setting.whole();
    for (const std::vector<int64_t>& rows : std::vector<std::vector<int64_t>>{
             std::vector<int64_t>(kSeq, 1), {kSeq}, {5, 1, 1, 1, 5}, {1, 12}, {12, 1}, {0, 13, 0}}) {
      nn::KvCache cache = setting.cache(kSeq);
      const Floats parts = setting.parts(cache, rows);
      ASSERT_EQ(parts.size(), whole.size());
      for (size_t i = 0; i < whole.size(); ++i)
        ASSERT_NEAR(parts[i], whole[i], tolerance(type) * std::max(1.0f, std::fabs(whole[i]) / 5))
            << "element " << i << " of " << rows.size() << " parts";
      EXPECT_EQ(cache.length(), kSeq);
    }
  }
}

TEST(KvCache, ThePromptHasTheBitsOfTraining) {
  CacheSetting setting(DType::f32);
  nn::KvCache cache = setting.cache(2 * kSeq);
  EXPECT_EQ(setting.parts(cache, {kSeq}), setting.whole());
}

TEST(KvCache, StartsAgainAfterClear) {
  CacheSetting setting(DType::f32);
  nn::KvCache cache = setting.cache(kSeq);
  const Floats first = setting.parts(cache, {4, 9});
  cache.clear();
  EXPECT_EQ(cache.length(), 0);
  EXPECT_EQ(setting.parts(cache, {4, 9}), first);
  // The truncated positions are run again.
  cache.truncate(4);
  const Floats rest =
      ops::to_floats(setting.device->compute(),
                     layers(setting.x.rows(4, kSeq), setting.weights, setting.frequencies, &cache).value());
  EXPECT_EQ(rest, Floats(first.begin() + 4 * kHeads * kDim, first.end()));
}

TEST(KvCache, RefusesWhatDoesNotFit) {
  CacheSetting setting(DType::f32);
  nn::KvCache cache = setting.cache(kSeq - 1);
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                setting.parts(cache, {10, 3});
              }),
              AllOf(HasSubstr("12 positions has 10"), HasSubstr("3 more")));
  EXPECT_EQ(cache.length(), 10);
  nn::KvCache::Layer& layer = cache.layer(0);
  const auto qkv = [&](Shape shape, DType type = DType::f32) {
    return Var(random_tensor(*setting.device, shape, 1, type));
  };
  const nn::AttentionOptions options{.heads = kHeads, .kv_heads = kKvHeads, .cache = &layer};
  EXPECT_THROW(nn::attention(qkv({1, kColumns}, DType::bf16), options), ShapeMismatch);
  EXPECT_THROW(nn::attention(qkv({1, kColumns / 2}), options), ShapeMismatch);
  EXPECT_THROW(
      nn::attention(qkv({1, (kHeads + 2) * kDim}), {.heads = kHeads, .kv_heads = 1, .cache = &layer}),
      ShapeMismatch);
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                nn::attention(qkv({2, kColumns}),
                              {.batch = 2, .heads = kHeads, .kv_heads = kKvHeads, .cache = &layer});
              }),
              HasSubstr("one sequence"));
  nn::Tape tape;
  const Var recorded = tape.input(qkv({1, kColumns}).value());
  EXPECT_THAT(message_of<InvalidArgument>([&] { nn::attention(recorded, options); }), HasSubstr("NoGrad"));
  EXPECT_EQ(layer.length(), 10);
  {
    const nn::NoGrad evaluation(tape);
    nn::attention(recorded, options);
    EXPECT_EQ(layer.length(), 11);
  }
  EXPECT_EQ(cache.length(), 10);
  EXPECT_THROW(cache.layer(2), InvalidArgument);
  EXPECT_THROW(cache.truncate(-1), InvalidArgument);
  EXPECT_THROW(nn::KvCache(*setting.device, 0, 1, 1, 1, DType::f32), InvalidArgument);
}

}  // namespace
}  // namespace sherd::test
