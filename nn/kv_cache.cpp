#include <sherd/nn/kv_cache.h>

#include <fmt/format.h>

#include <algorithm>

#include <sherd/base/error.h>
#include <sherd/kernels/copy/copy.h>

namespace sherd::nn {

KvCache::KvCache(Device& device, int64_t layers, int64_t capacity, int64_t kv_heads, int64_t head_dim,
                 DType dtype) {
  if (layers < 1 || capacity < 1 || kv_heads < 1 || head_dim < 1)
    throw InvalidArgument(
        fmt::format("a cache of {} layers, {} positions, {} key heads of {} components; all must be positive",
                    layers, capacity, kv_heads, head_dim));
  layers_.resize(static_cast<size_t>(layers));
  for (Layer& layer : layers_) {
    layer.keys_ = Tensor::empty(device, {capacity, kv_heads * head_dim}, dtype, "kv_cache");
    layer.values_ = Tensor::empty(device, {capacity, kv_heads * head_dim}, dtype, "kv_cache");
    layer.kv_heads_ = kv_heads;
  }
}

KvCache::Layer& KvCache::layer(int64_t i) {
  if (i < 0 || i >= layers())
    throw InvalidArgument(fmt::format("layer {} of a cache of {} layers", i, layers()));
  return layers_[static_cast<size_t>(i)];
}

int64_t KvCache::length() const {
  return std::min_element(layers_.begin(), layers_.end(),
                          [](const Layer& a, const Layer& b) { return a.length() < b.length(); })
      ->length();
}

void KvCache::truncate(int64_t length) {
  if (length < 0) throw InvalidArgument(fmt::format("a cache of {} positions", length));
  for (Layer& layer : layers_) layer.length_ = std::min(layer.length_, length);
}

void KvCache::Layer::append(Stream& s, const Tensor& qkv, int64_t heads) {
  const int64_t wide = keys_.size(1), before = heads * head_dim(), columns = before + 2 * wide;
  if (qkv.dim() != 2 || qkv.size(1) != columns || qkv.dtype() != keys_.dtype())
    throw ShapeMismatch(fmt::format("a cache of {} [{}, {}] takes qkv of [rows, {}] for {} heads, not {} {}",
                                    name_of(keys_.dtype()), capacity(), wide, columns, heads,
                                    name_of(qkv.dtype()), to_string(qkv.shape())));
  const int64_t rows = qkv.size(0);
  if (rows > capacity() - length_)
    throw InvalidArgument(
        fmt::format("a cache of {} positions has {} and cannot take {} more; clear it and run the end of the "
                    "text again from position 0, or make it larger",
                    capacity(), length_, rows));
  if (rows == 0) return;
  int64_t column = before;
  for (const Tensor& kept : {keys_, values_}) {
    ops::strided_copy(s, kept.flat(length_ * wide, (length_ + rows) * wide), wide,
                      qkv.flat(column, qkv.numel()), columns, rows, wide);
    column += wide;
  }
  length_ += rows;
}

}  // namespace sherd::nn
