// The mark by which a process knows what it wrote. Private to checkpoint/ and the programs.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include <fmt/format.h>

namespace sherd {

/// 16 random hexadecimal digits.
inline std::string random_token() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", static_cast<uint32_t>(random()), static_cast<uint32_t>(random()));
}

}  // namespace sherd
