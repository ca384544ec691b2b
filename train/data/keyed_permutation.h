// Random order that needs no memory.
#pragma once

#include <cstdint>

namespace sherd {

/// A permutation of [0, size), a pure function of its arguments: a Feistel network of Philox rounds over the
/// least number of bits that holds `size` (at least 2), walked along its cycle until the value is below
/// `size` (Black and Rogaway, Ciphers with arbitrary finite domains, 2002). It takes fewer than two trips
/// through the network on average (four for sizes of 1).
class KeyedPermutation {
 public:
  /// `number` distinguishes permutations of one key. @throws InvalidArgument for a size of 0.
  KeyedPermutation(uint64_t size, uint64_t key, uint64_t number);

  /// Returns the image of `index`, which is below size.
  uint64_t operator()(uint64_t index) const;

 private:
  uint64_t once(uint64_t x) const;

  uint64_t size_, key_, number_;
  int bits_;
};

}  // namespace sherd
