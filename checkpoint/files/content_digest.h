// XXH3-64 digests of files: of all bytes, or of blocks spread over them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace sherd {

/// XXH3-64, seed 0, of bytes that arrive in pieces. One thread at a time.
class ContentDigest {
 public:
  /// Reads `bytes` bytes from `offset`.
  using Read = std::function<void(int64_t offset, void* to, int64_t bytes)>;

  /// @throws OutOfMemory.
  ContentDigest();
  ~ContentDigest();
  ContentDigest(const ContentDigest&) = delete;
  ContentDigest& operator=(const ContentDigest&) = delete;

  void add(const void* data, int64_t bytes);
  /// Adds length and bytes, so that consecutive texts are separated.
  void add(std::string_view text);
  /// Adds bytes [begin, begin + bytes) of what `read` reads.
  void add(int64_t begin, int64_t bytes, const Read& read);
  /// Calls `visit` for the ranges that add_samples() reads, in order.
  static void each_sample(int64_t begin, int64_t bytes, int64_t blocks,
                          const std::function<void(int64_t offset, int64_t bytes)>& visit);
  /// Adds `blocks` (>= 2) blocks of 4 KiB of these bytes at equal distances, including the first and the last
  /// bytes; all bytes where the blocks cover them. An odd count includes the middle. @returns bytes read.
  int64_t add_samples(int64_t begin, int64_t bytes, int64_t blocks, const Read& read);

  uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns the number of blocks for add_samples() of `bytes` bytes out of `total` that are read together: all
/// bytes up to a total of 16 MiB, otherwise 1 MiB shared by size, with at least `least` for each. Equal
/// arguments give an equal count, which is odd or `least`.
int64_t sample_blocks(int64_t bytes, int64_t total, int64_t least);

}  // namespace sherd
