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

/// Part of a tensor that one rank writes.
struct LocalTensor {
  std::string name = {};
  Section section = Section::model;
  DType dtype = DType::f32;
  /// Shape of the unsharded tensor; empty for a scalar.
  Shape shape = {};
  /// Boxes of the whole tensor (of [1] for a scalar). Box after box, each in row-major order, gives the
  /// elements of `data`.
  std::vector<Box> boxes = {};
  /// Device memory that is read at every save. Undefined for one host value; then `value` is called.
  Tensor data = {};
  std::function<float()> value = {};
  /// The elements are not in memory: the writer of the planned files provides them. Not for CheckpointSaver.
  bool streamed = false;
  /// Count non-finite values: a checkpoint that has any is not resumed. False for buffers, which may hold
  /// infinities (for example a mask).
  bool counts_not_finite = true;
  /// Further names of the same tensor in the model.
  std::vector<std::string> tied = {};
  /// CheckpointSaver calls it at every save, on the rank's thread, before it copies data. It adds the
  /// training state of these tensors. An exception fails the save on every rank.
  std::function<void(TrainingState&)> before_save = {};
  /// Low halves of f32 values whose high halves are `data` (kernels/rest/rest.h, SplitWeight); undefined elsewhere.
  Tensor low = {};
};

/// Elements [first, first + count) of LocalTensor `tensor`: one of its boxes.
struct PlannedEntry {
  size_t tensor = 0;
  Box box;
  int64_t first = 0, count = 0;
  DType dtype = DType::f32;
  /// Known after writing.
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

/// Returns the files of a rank (counted from 0): box k of a tensor goes to file k of its section. Empty boxes
/// are left out. A scalar has no dimensions in the files either.
/// @throws InvalidArgument naming all tensors that are named twice or whose boxes do not fit shape or data.
[[nodiscard]] std::vector<PlannedFile> plan_files(int rank, std::span<const LocalTensor> tensors);

/// Returns the bytes of tensors in these files.
[[nodiscard]] int64_t data_bytes(std::span<const PlannedFile> files);
/// Returns whether a background save reads the tensor where it rests, on the host, in place of a copy.
[[nodiscard]] bool read_in_place(const LocalTensor& tensor);
/// Returns the bytes of these files that a background save copies before it writes.
[[nodiscard]] int64_t copied_bytes(std::span<const PlannedFile> files, std::span<const LocalTensor> tensors);

/// Returns files and pieces of a plan as a part of a manifest, with the non-finite counts of the writing.
[[nodiscard]] Manifest part_of(std::span<const PlannedFile> files, std::span<const LocalTensor> tensors);
/// Merger of the parts of all ranks, in rank order.
class PartMerger {
 public:
  /// @throws ShapeMismatch when ranks disagree about a tensor's shape or dtype.
  void add(Manifest part);
  [[nodiscard]] Manifest take() { return std::move(whole_); }

 private:
  Manifest whole_;
  std::map<std::pair<Section, std::string>, size_t> index_;
};

}  // namespace sherd
