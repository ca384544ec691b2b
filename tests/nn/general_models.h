// Models that are not decoders, written with arithmetic on values: their forwards end in an objective.
#pragma once

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include <sherd/sherd.h>

namespace sherd::test {

/// Elements by their index and the sum of the name's bytes; tests/golden/make_general.py has the same.
inline std::vector<float> general_values(const std::string& name, int64_t count) {
  int64_t salt = 0;
  for (const char c : name) salt += c;
  const float more = name.find("norm") != std::string::npos && name.ends_with("weight") ? 1 : 0;
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<float>((37 * i + 5 * i * i + salt) % 61 - 30) / 128 + more);
  return values;
}

/// Self-attention without causality and a GELU MLP, normalised before each.
struct EncoderBlock : nn::Module<EncoderBlock> {
  static constexpr int64_t kWidth = 12, kHeads = 3;
  Parameter norm1 = param("norm1.weight", {kWidth}, constant(1));
  Parameter qkv = param("qkv.weight", {3 * kWidth, kWidth}, normal(0.2f));
  Parameter proj = param("proj.weight", {kWidth, kWidth}, normal(0.2f));
  Parameter norm2 = param("norm2.weight", {kWidth}, constant(1));
  Parameter up = param("up.weight", {2 * kWidth, kWidth}, normal(0.2f));
  Parameter down = param("down.weight", {kWidth, 2 * kWidth}, normal(0.2f));

  nn::Var forward(const nn::Var& x, int64_t batch) {
    const nn::Var all = nn::linear(nn::layer_norm(x, norm1), qkv);
    const std::vector<nn::Var> parts = nn::split_columns(all, {kWidth, kWidth, kWidth});
    const nn::Var heads =
        nn::dot_product_attention(parts[0], parts[1], parts[2], {.batch = batch, .heads = kHeads});
    const nn::Var y = nn::add_linear(x, heads, proj);
    return nn::gelu_mlp(nn::layer_norm(y, norm2), up, down, y);
  }
};

/// Vision transformer: images [n, 3, 8, 8] in patches of 4 x 4, a class token, learned positions.
/// (Dosovitskiy et al., 2021, arXiv:2010.11929.)
struct VisionTransformer : nn::Module<VisionTransformer> {
  static constexpr int64_t kBatch = 4, kWidth = EncoderBlock::kWidth, kClasses = 5;
  static inline const Shape kInput{kBatch, 3, 8, 8};
  Parameter patch = param("patch.weight", {kWidth, 3 * 4 * 4}, normal(0.1f));
  Parameter token = param("token", {1, 1, kWidth}, normal(0.1f));
  Parameter positions = param("positions", {5, kWidth}, normal(0.1f));
  std::array<EncoderBlock, 2> blocks;
  Parameter head = param("head.weight", {kClasses, kWidth}, normal(0.2f));
  VisionTransformer() {
    child("blocks.0", blocks[0]);
    child("blocks.1", blocks[1]);
  }

  nn::Var forward(const nn::Var& images) {
    const nn::Var tiles = nn::permute(nn::reshape(images, {kBatch, 3, 2, 4, 2, 4}), {0, 2, 4, 1, 3, 5});
    nn::Var x = nn::reshape(nn::linear(nn::reshape(tiles, {kBatch * 4, -1}), patch), {kBatch, 4, kWidth});
    x = nn::concat({nn::broadcast_to(token, {kBatch, 1, kWidth}), x}, 1) + positions;
    x = nn::reshape(x, {kBatch * 5, kWidth});
    for (EncoderBlock& b : blocks) x = b(x, kBatch);
    x = nn::slice(nn::reshape(x, {kBatch, 5, kWidth}), 1, 0, 1);
    const nn::Var classes = nn::log_softmax(nn::linear(nn::reshape(x, {kBatch, kWidth}), head));
    return -nn::mean(nn::slice(classes, 1, 2, 3));  // all images are of class 2
  }
};

/// Variational autoencoder of rows in [0, 1]: a normal posterior, its divergence from N(0, 1), logits of rows.
/// (Kingma and Welling, 2014, arXiv:1312.6114.)
struct VariationalAutoencoder : nn::Module<VariationalAutoencoder> {
  static constexpr int64_t kBatch = 6, kWidth = 10, kHidden = 16, kLatent = 3;
  static inline const Shape kInput{kBatch, kWidth};
  Parameter in = param("in.weight", {kHidden, kWidth}, normal(0.3f));
  Parameter in_bias = param("in.bias", {kHidden}, constant(0));
  Parameter posterior = param("posterior.weight", {2 * kLatent, kHidden}, normal(0.3f));
  Parameter out = param("out.weight", {kHidden, kLatent}, normal(0.3f));
  Parameter logits = param("logits.weight", {kWidth, kHidden}, normal(0.3f));

  nn::Var forward(const nn::Var& x) {
    const nn::Var rows = nn::sigmoid(x), hidden = nn::tanh(nn::linear(rows, in, in_bias));
    const std::vector<nn::Var> both = nn::split_columns(nn::linear(hidden, posterior), {kLatent, kLatent});
    const nn::Var &mean = both[0], &log_variance = both[1];
    const nn::Var noise = nn::constants(x.device(), mean.shape(), general_values("noise", kBatch * kLatent));
    const nn::Var z = mean + nn::exp(0.5 * log_variance) * noise;
    const nn::Var again = nn::linear(nn::tanh(nn::linear(z, out)), logits);
    const nn::Var divergence = 0.5 * (nn::exp(log_variance) + mean * mean - 1 - log_variance);
    return (nn::sum(nn::binary_cross_entropy(again, rows)) + nn::sum(divergence)) / kBatch;
  }
};

/// Convolution, group norm and SiLU.
struct ConvolutionBlock : nn::Module<ConvolutionBlock> {
  ConvolutionBlock(int64_t in, int64_t out)
      : w(param("conv.weight", {out, in, 3, 3}, kaiming_normal())),
        gain(param("norm.weight", {out}, constant(1))),
        bias(param("norm.bias", {out}, constant(0))) {}
  nn::Var forward(const nn::Var& x) {
    return nn::silu(nn::group_norm(nn::conv2d(x, w, {}, {.padding = {1, 1}}), 2, gain, bias));
  }
  Parameter w, gain, bias;
};

/// U-Net of two levels, which learns the mean of a pixel's neighbours. (Ronneberger et al., 2015, arXiv:1505.04597.)
struct UNet : nn::Module<UNet> {
  static constexpr int64_t kBatch = 2;
  static inline const Shape kInput{kBatch, 1, 8, 8};
  ConvolutionBlock down{1, 4}, deep{4, 8}, up{12, 4};
  Parameter out = param("out.weight", {1, 4, 1, 1}, normal(0.3f));
  UNet() {
    child("down", down);
    child("deep", deep);
    child("up", up);
  }

  nn::Var forward(const nn::Var& x) {
    const nn::Var wide = down(x), small = deep(nn::max_pool2d(wide, {2, 2}, {2, 2}));
    const nn::Var larger =
        nn::reshape(nn::broadcast_to(nn::reshape(small, {kBatch, 8, 4, 1, 4, 1}), {kBatch, 8, 4, 2, 4, 2}),
                    {kBatch, 8, 8, 8});
    const nn::Var y = nn::conv2d(up(nn::concat({wide, larger}, 1)), out);
    return nn::mean(nn::smooth_l1(y, nn::average_pool2d(x, {3, 3}, {.padding = {1, 1}})));
  }
};

/// Encoder and decoder with cross attention: repeats a sequence of 5 rows, of which it sees those before.
struct EncoderDecoder : nn::Module<EncoderDecoder> {
  static constexpr int64_t kBatch = 3, kLength = 5, kWidth = EncoderBlock::kWidth, kHeads = 2;
  static inline const Shape kInput{kBatch * kLength, kWidth};
  EncoderBlock encoder;
  Parameter start = param("start", {1, 1, kWidth}, normal(0.3f));
  Parameter query = param("query.weight", {kWidth, kWidth}, normal(0.3f));
  Parameter key_value = param("key_value.weight", {2 * kWidth, kWidth}, normal(0.3f));
  Parameter out = param("out.weight", {kWidth, kWidth}, normal(0.3f));
  EncoderDecoder() { child("encoder", encoder); }

  nn::Var forward(const nn::Var& x) {
    const nn::Var memory = nn::linear(encoder(x, kBatch), key_value);
    const std::vector<nn::Var> kv = nn::split_columns(memory, {kWidth, kWidth});
    const nn::Var rows = nn::reshape(x, {kBatch, kLength, kWidth});
    const nn::Var before =
        nn::concat({nn::broadcast_to(start, {kBatch, 1, kWidth}), nn::slice(rows, 1, 0, kLength - 1)}, 1);
    const nn::Var decoded = nn::reshape(before, {kBatch * kLength, kWidth});
    std::vector<float> hidden(kLength * kLength, 0);
    for (int64_t i = 0; i < kLength; ++i)
      for (int64_t j = i + 1; j < kLength; ++j) hidden[static_cast<size_t>(i * kLength + j)] = -INFINITY;
    const nn::Var causal = nn::dot_product_attention(
        decoded, decoded, decoded,
        {.batch = kBatch, .heads = kHeads, .mask = nn::constants(x.device(), {kLength, kLength}, hidden)});
    const nn::Var across = nn::dot_product_attention(nn::linear(causal, query), kv[0], kv[1],
                                                     {.batch = kBatch, .heads = kHeads});
    return nn::mean(nn::power(nn::linear(causal + across, out) - x, 2));
  }
};

}  // namespace sherd::test
