// Small checkpoints of known contents, as any number of ranks would write them.
#pragma once

#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <sherd/checkpoint/files/file_system.h>
#include <sherd/checkpoint/format/manifest.h>

namespace sherd::test {

struct WholeTensor {
  std::string name;
  Section section = Section::model;
  DType dtype = DType::f32;
  Shape shape;
  /// All elements, row-major.
  std::string bytes;
  std::vector<std::string> tied = {};

  template <class T>
  static WholeTensor of(std::string name, Shape shape, const std::vector<T>& values,
                        Section section = Section::model) {
    WholeTensor t{std::move(name), section, dtype_of<T>(), std::move(shape), {}, {}};
    t.bytes.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
    return t;
  }
  /// Floats in (-1, 1) that depend on `seed` and the place only.
  static WholeTensor random(std::string name, Shape shape, uint64_t seed, Section section = Section::model);
};

/// The boxes that a rank writes of a tensor; over all ranks they cover it exactly once.
using Cut = std::function<std::vector<Box>(int rank, int ranks, const Shape& shape)>;
/// ceil(rows / ranks) rows each, the last ranks fewer or none.
std::vector<Box> cut_rows(int rank, int ranks, const Shape& shape);
/// Intervals of elements of uneven sizes, in the middle of rows: several boxes on a rank.
std::vector<Box> cut_flat(int rank, int ranks, const Shape& shape);
/// Cuts the last dimension; 1-D tensors as rows.
std::vector<Box> cut_columns(int rank, int ranks, const Shape& shape);

/// The elements of a box, row-major.
std::string bytes_of_box(const WholeTensor& tensor, const Box& box);

/// Saves into `save_folder` (created when missing) what `ranks` ranks hold. @returns the committed folder.
std::filesystem::path make_checkpoint(const std::filesystem::path& save_folder, int ranks,
                                      const std::vector<WholeTensor>& tensors,
                                      const TrainingState& training = {}, const Cut& cut = cut_rows,
                                      FileSystem& files = FileSystem::posix());

}  // namespace sherd::test
