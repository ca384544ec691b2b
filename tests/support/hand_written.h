// Checkpoints put together by hand, without the code that saves.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <sherd/checkpoint/format/manifest.h>

namespace sherd::test {

struct HandTensor {
  std::string name;
  Section section = Section::model;
  DType dtype = DType::f32;
  Shape shape;
  /// Boxes and their files in the section's folder, e.g. "a.safetensors".
  std::vector<std::pair<Box, std::string>> pieces;

  /// All elements; they depend on the name.
  std::string bytes() const;
  /// The elements of a box, one by one.
  std::string bytes(const Box& box) const;
};

/// Writes files and manifest below `folder`; tensors are in a file in the given order. @returns the manifest.
Manifest write_by_hand(const std::filesystem::path& folder, const std::vector<HandTensor>& tensors);

/// Header checksum and block checksums of a file's bytes.
void set_checksums(CheckpointFile& record, const std::string& bytes);

/// Cuts a tensor into 1 to `parts` rows of boxes along dimension d.
std::vector<Box> cut(const Shape& shape, size_t d, int64_t parts);

}  // namespace sherd::test
