#include <sherd/train/data/keyed_permutation.h>

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/kernels/random/random.h>

namespace sherd {
namespace {

constexpr uint32_t kRounds = 8;  // even: halves of different widths are where they were

constexpr uint64_t mask(int bits) { return bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1; }

}  // namespace

KeyedPermutation::KeyedPermutation(uint64_t size, uint64_t key, uint64_t number)
    : size_(size),
      key_(key),
      number_(number),
      bits_(std::max(2, static_cast<int>(std::bit_width(size - 1)))) {
  if (size == 0) throw InvalidArgument("a permutation of no elements");
}

uint64_t KeyedPermutation::once(uint64_t x) const {
  int left = bits_ / 2, right = bits_ - left;  // widths of the halves, each at most 32
  for (uint32_t round = 0; round < kRounds; ++round) {
    const uint64_t low = x & mask(right), high = x >> right;
    const auto words = philox4x32({static_cast<uint32_t>(low), round, static_cast<uint32_t>(number_),
                                   static_cast<uint32_t>(number_ >> 32)},
                                  {static_cast<uint32_t>(key_), static_cast<uint32_t>(key_ >> 32)});
    x = low << left | ((high ^ words[0]) & mask(left));
    std::swap(left, right);
  }
  return x;
}

uint64_t KeyedPermutation::operator()(uint64_t index) const {
  if (index >= size_) throw InvalidArgument(fmt::format("element {} of a permutation of {}", index, size_));
  do index = once(index);
  while (index >= size_);
  return index;
}

}  // namespace sherd
