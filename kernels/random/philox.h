// Counter-based random numbers. Every value is a pure function of (key, index), on every rank and thread.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace sherd {

/// One block of Philox4x32 (Salmon et al., SC 2011): four words from a 128-bit counter and a 64-bit key.
template <int kRounds = 10>
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// A 64-bit key from a seed and a name; every bit of either changes about half of the result's bits.
constexpr uint64_t hash64(uint64_t seed, std::string_view name) {
  uint64_t h = 0xcbf29ce484222325u;  // FNV-1a over the name
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  auto mix = [](uint64_t z) {  // finaliser of SplitMix64
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  };
  return mix(mix(seed) ^ h);
}

}  // namespace sherd
