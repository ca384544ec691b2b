// Files of examples, as scripts/tokenize.py --chat writes them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <vector>

/// Writes PREFIX.bin and PREFIX.idx: tokens that are learned as they are, context as -1 - token.
inline void write_examples(const std::filesystem::path& prefix,
                           const std::vector<std::vector<int32_t>>& examples) {
  const auto put = [](std::ofstream& out, const auto& values) {
    out.write(reinterpret_cast<const char*>(values.data()),
              static_cast<std::streamsize>(values.size() * sizeof values[0]));
  };
  std::vector<int32_t> lengths;
  std::vector<int64_t> begins, bounds{0};
  int64_t bytes = 0;
  std::ofstream bin(prefix.string() + ".bin", std::ios::binary);
  for (const std::vector<int32_t>& e : examples) {
    put(bin, e);
    lengths.push_back(static_cast<int32_t>(e.size()));
    begins.push_back(bytes);
    bytes += 4 * std::ssize(e);
    bounds.push_back(std::ssize(bounds));
  }
  std::ofstream idx(prefix.string() + ".idx", std::ios::binary);
  idx.write("MMIDIDX\0\0", 9);
  put(idx, std::vector<uint64_t>{1});
  idx.put(4);
  put(idx, std::vector<uint64_t>{examples.size(), bounds.size()});
  put(idx, lengths);
  put(idx, begins);
  put(idx, bounds);
}
