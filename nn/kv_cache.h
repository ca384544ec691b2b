// KV cache: keys and values of earlier positions, for generation of text.
#pragma once

#include <cstdint>
#include <vector>

#include <sherd/kernels/device/tensor.h>

namespace sherd::nn {

/// One sequence's keys and values in every layer, so that a new token costs one row of each layer and not the
/// whole text again:
///
///     nn::KvCache cache(device, layers, seq, kv_heads, head_dim, dtype);
///     nn::NoGrad evaluation(tape);
///     logits = model(prompt rows, &cache);      // each layer: rope(.first_position = layer.length()), then
///     logits = model(one row, &cache);          //             attention(.cache = &layer)
///
/// A forward of t rows takes them for the next t positions. Each layer's attention() appends its rows, which
/// raises that layer's length. A caller that needs positions (learned ones, rotary angles) reads the length
/// before that.
///
/// With tensor parallelism each rank's cache has the key heads that the rank has. Owned by one rank's thread;
/// memory is written on the device's compute stream. It does not slide: keys are stored with their positions,
/// so a window that moves is run again from position 0 (clear()).
class KvCache {
 public:
  /// Allocates k and v [capacity, kv_heads * head_dim] for each layer. @throws InvalidArgument unless all
  /// sizes are positive.
  KvCache(Device& device, int64_t layers, int64_t capacity, int64_t kv_heads, int64_t head_dim, DType dtype);

  class Layer {
   public:
    /// Returns the number of cached positions.
    int64_t length() const { return length_; }
    int64_t capacity() const { return keys_.size(0); }
    int64_t kv_heads() const { return kv_heads_; }
    int64_t head_dim() const { return keys_.size(1) / kv_heads_; }
    const Tensor& keys() const { return keys_; }
    const Tensor& values() const { return values_; }

    /// Copies the keys and values of a packed qkv [rows, (heads + 2 * kv_heads) * head_dim] after the cached
    /// ones.
    /// @throws ShapeMismatch for other columns or another dtype; InvalidArgument when the rows exceed the
    /// remaining capacity.
    void append(Stream& s, const Tensor& qkv, int64_t heads);

   private:
    friend class KvCache;
    Tensor keys_, values_;
    int64_t kv_heads_ = 0, length_ = 0;
  };

  Layer& layer(int64_t i);
  int64_t layers() const { return static_cast<int64_t>(layers_.size()); }
  int64_t capacity() const { return layers_[0].capacity(); }
  /// Returns the number of positions that are cached in all layers.
  int64_t length() const;
  /// Drops all positions from `length` on, e.g. those of a forward that an exception ended.
  void truncate(int64_t length);
  void clear() { truncate(0); }

 private:
  std::vector<Layer> layers_;
};

}  // namespace sherd::nn
