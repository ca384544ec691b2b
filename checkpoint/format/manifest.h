// Manifest of a checkpoint (FORMAT.md) as plain data: the tensors and the places of their bytes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/base/error.h>
#include <sherd/checkpoint/finite.h>
#include <sherd/dtensor/index.h>
#include <sherd/kernels/device/dtype.h>
#include <sherd/kernels/device/shape.h>

namespace sherd {

/// Bytes of data under one checksum.
constexpr int64_t kChecksumBlock = int64_t{1} << 20;

enum class Section { model, optim };
const char* name_of(Section s);

/// Piece of a tensor: a box of it, row-major and contiguous in one file.
struct CheckpointPiece {
  Box box;
  int file = 0;
  /// Start byte in the file (header included).
  int64_t begin = 0;
  /// Non-finite elements of the piece, in row-major order. Earlier versions did not count and store 0.
  NotFinite not_finite = {};
};

struct CheckpointTensor {
  std::string name;
  Section section = Section::model;
  DType dtype = DType::f32;
  /// At least one dimension: [1] for a scalar, which `scalar` marks.
  Shape shape;
  std::vector<CheckpointPiece> pieces;
  /// Further names in the model that saved it (tied parameters). Equal tensors of these names are stored,
  /// too, except by earlier versions.
  std::vector<std::string> tied = {};
  /// No dimensions: [] in the files, [1] here and in the pieces. Earlier versions stored [1] in both.
  bool scalar = false;
  /// Returns the shape in the files and in other programs.
  Shape stored_shape() const { return scalar ? Shape{} : shape; }
};

struct CheckpointFile {
  /// Relative to the checkpoint's folder.
  std::string path;
  int64_t bytes = 0;
  int64_t header_bytes = 0;
  uint64_t header_checksum = 0;
  /// One for each kChecksumBlock of data. Empty in a manifest without checksums.
  std::vector<uint64_t> block_checksums;
  int64_t data_bytes() const { return bytes - header_bytes; }
  /// Return the bytes [begin, end) of block i in the file.
  int64_t block_begin(int64_t i) const { return header_bytes + i * kChecksumBlock; }
  int64_t block_end(int64_t i) const { return std::min(bytes, block_begin(i + 1)); }
  int64_t blocks() const { return (data_bytes() + kChecksumBlock - 1) / kChecksumBlock; }
};

/// State of a run, besides tensors, that resuming needs to continue as if uninterrupted.
struct TrainingState {
  /// Optimizer steps completed.
  int64_t step = 0;
  /// Training sequences consumed, over all ranks: the data cursor.
  int64_t sequences = 0;
  /// Seed of the counter-based generators; counters follow from `step`.
  uint64_t seed = 0;
  /// Human-readable information and values for checks, e.g. "routing", "config", "muon.momentum". kEvalLoss and kEvalData,
  /// of a checkpoint saved right after an evaluation: its loss (17 digits), and a text that is equal for equal data.
  std::map<std::string, std::string> info = {};
  static constexpr const char* kEvalLoss = "eval_loss";
  static constexpr const char* kEvalData = "eval_data";
  bool operator==(const TrainingState&) const = default;
};

struct Manifest {
  uint64_t sequence = 0;
  TrainingState training;
  std::vector<CheckpointFile> files;
  std::vector<CheckpointTensor> tensors;
  /// False for folders of another program: only structure can be verified.
  bool checksums = true;
  /// Lines of scan_safetensors() about files of a folder that are not read although their names are those of
  /// the model's. Not stored.
  std::vector<std::string> notes = {};

  /// Returns the tensor of that section and name, or null. Linear; make an index for many look-ups.
  const CheckpointTensor* find(Section section, std::string_view name) const;
};

/// Returns the manifest's non-finite counts over a tensor's pieces; `first` in row-major order of the whole
/// tensor.
[[nodiscard]] NotFinite not_finite_of(const CheckpointTensor& tensor);
/// Returns the number of non-finite values of the model's tensors; 0 also where they were not counted.
int64_t model_not_finite(const Manifest& manifest);
/// Returns element `at` of a box in row-major order as an index of the whole tensor in row-major order.
int64_t index_in_whole(const Shape& shape, const Box& box, int64_t at);

/// A manifest has a format version above this program's. It is sound as far as known, and not damage: its checkpoint is
/// never passed over, replaced or removed.
class NewerFormat : public NotSupported {
 public:
  using NotSupported::NotSupported;
};

/// Returns the bytes of manifest.binpb, the same for equal manifests. @throws InvalidArgument when the
/// message would pass 2 GiB, and for text that is not UTF-8.
[[nodiscard]] std::string encode_manifest(const Manifest& manifest);
/// Returns the sequence number; only the first bytes of a manifest file are needed. @throws
/// CorruptCheckpoint, NewerFormat.
uint64_t decode_sequence(std::string_view first_48_bytes);
/// Returns the recorded checksum of everything except the sequence number: training state, files with their
/// checksums, and tensors. decode_manifest() verifies it. @throws CorruptCheckpoint, NewerFormat.
uint64_t decode_message_checksum(std::string_view first_48_bytes);
constexpr int64_t kManifestPrefix = 48;
/// Decodes a manifest and checks all that FORMAT.md requires of a manifest by itself (rules 1 to 4 of section
/// 4). Memory stays proportional to bytes.size() (about 100 times for the worst messages). @throws
/// CorruptCheckpoint with the error and its place, NewerFormat; the caller adds the file's name.
[[nodiscard]] Manifest decode_manifest(std::string_view bytes);

/// Encode and decode parts of a manifest, as ranks exchange them: files and tensors only, without checksums
/// or rules.
[[nodiscard]] std::string encode_part(const Manifest& part);
[[nodiscard]] Manifest decode_part(std::string_view bytes);

/// Checks rules 2 to 4 of FORMAT.md section 4. @throws CorruptCheckpoint for the first violation.
void check_manifest(const Manifest& manifest);

/// XXH3-64, seed 0.
uint64_t checksum(const void* data, int64_t bytes);

}  // namespace sherd
