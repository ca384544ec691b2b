// Plan of a save: the bytes that each rank writes into each file. Arithmetic, no files.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <sherd/checkpoint/format/manifest.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd {

/// What one rank writes of a tensor.
struct LocalTensor {
  std::string name = {};
  Section section = Section::model;
  DType dtype = DType::f32;
  /// Of the whole tensor; empty without dimensions.
  Shape shape = {};
  /// Boxes of the whole tensor (of [1] where that has no dimensions); box after box, each in row-major order, they are the elements of `data`.
  std::vector<Box> boxes = {};
  /// Device memory that is read at every save. Undefined for one host value: then `value` is asked.
  Tensor data = {};
  std::function<float()> value = {};
  /// The elements are not in memory: who writes the planned files brings them. Not for CheckpointSaver.
  bool streamed = false;
  /// Values that are not finite are counted: a checkpoint that has any is not resumed. Not of buffers, which may
  /// hold infinities (a mask, say).
  bool counts_not_finite = true;
  /// Further names of the same tensor in the model.
  std::vector<std::string> tied = {};
  /// CheckpointSaver calls it at every save, on the rank's thread, before it copies data: adds to the training state what
  /// belongs to these tensors. An exception fails the save on every rank.
  std::function<void(TrainingState&)> before_save = {};
};

/// Elements [first, first + count) of LocalTensor number `tensor`: one of its boxes.
struct PlannedEntry {
  size_t tensor = 0;
  Box box;
  int64_t first = 0, count = 0;
  DType dtype = DType::f32;
  /// Known when it is written.
  NotFinite not_finite = {};
  bool counts_not_finite = true;
};

/// One safetensors file of a checkpoint before its data is written.
struct PlannedFile {
  /// Path, length and header of the file; no block checksums yet.
  CheckpointFile record;
  /// Header length and padded JSON: the file's first record.header_bytes bytes.
  std::string header;
  /// In the order of the data.
  std::vector<PlannedEntry> entries;
};

/// The files of a rank (counted from 0): box k of a tensor goes to file k of its section. Empty boxes are
/// left out. A tensor without dimensions has none in the files either.
/// @throws InvalidArgument naming all tensors that are named twice or whose boxes do not fit shape or data.
std::vector<PlannedFile> plan_files(int rank, std::span<const LocalTensor> tensors);

/// Files and pieces of a plan, as a part of a manifest; what was written says what is not finite.
Manifest part_of(std::span<const PlannedFile> files, std::span<const LocalTensor> tensors);
/// The parts of all ranks, put together in rank order.
class PartMerger {
 public:
  /// @throws ShapeMismatch when ranks disagree about a tensor's shape or dtype.
  void add(Manifest part);
  Manifest take() { return std::move(whole_); }

 private:
  Manifest whole_;
  std::map<std::pair<Section, std::string>, size_t> index_;
};

}  // namespace sherd
