// Reader of tensors, or of boxes of them, from a checkpoint or from safetensors files of other programs.
#pragma once

#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <sherd/checkpoint/files/file_system.h>
#include <sherd/checkpoint/format/manifest.h>

namespace sherd {

/// What read() took from disk.
struct ReadCounts {
  int64_t bytes_used = 0;  // asked for
  int64_t bytes_read = 0;  // of tensor data, rounded out to checksum blocks
  int64_t blocks_verified = 0;
};

/// Which tensors of files of other programs are plain bytes to the reader, by their names; an empty function means
/// none.
using Opaque = std::function<bool(std::string_view name)>;

/// Opened from
///   - a committed checkpoint's folder (it has manifest.binpb): every block is verified before use;
///   - a folder of safetensors files: the `model` or `optim` folder of a checkpoint, a folder that PyTorch's
///     DCP writer saved (pieces with saved_offsets), or a Hugging Face folder with
///     model.safetensors.index.json;
///   - one safetensors file.
/// The latter two have no checksums: structure and coverage are checked, manifest().checksums is false, and
/// all tensors are in section model (in a folder whose every name begins with "optim.": optim).
///
/// One thread at a time. Holds at most 128 files open and one block (1 MiB) of each.
class CheckpointReader {
 public:
  /// Reads the manifest or the headers, no tensor data.
  /// @throws IoError when the path is missing or nothing of the above, CorruptCheckpoint when it is damaged.
  static CheckpointReader open(const std::filesystem::path& path, FileSystem& files = FileSystem::posix());
  /// The same with the tensors that `opaque` names as u8 tensors of their bytes: they may be of types that sherd has
  /// none of. Not of a committed checkpoint.
  static CheckpointReader open(const std::filesystem::path& path, const Opaque& opaque,
                               FileSystem& files = FileSystem::posix());
  CheckpointReader(CheckpointReader&&) noexcept;
  ~CheckpointReader();

  const std::filesystem::path& path() const;
  FileSystem& files() const;
  const Manifest& manifest() const;
  /// Null when there is none. By hash.
  const CheckpointTensor* find(Section section, std::string_view name) const;

  /// Whether every file is there with its recorded length and header, without reading data.
  /// @throws CorruptCheckpoint naming the first file that is not.
  void check_files();

  /// Copies the elements of `boxes` of a tensor of this reader, box after box, each in row-major order, to
  /// host memory `to`, in the tensor's dtype.
  /// @throws InvalidArgument for a box outside, CorruptCheckpoint naming file, tensor and byte range when a
  /// block fails its checksum or a file is not as recorded, IoError.
  void read(const CheckpointTensor& tensor, std::span<const Box> boxes, void* to);

  const ReadCounts& counts() const;

 private:
  struct Impl;
  explicit CheckpointReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// A manifest without checksums, made from headers: `path` is one safetensors file or a folder of them (see
/// CheckpointReader). File paths are relative to the folder. @throws as CheckpointReader::open().
Manifest scan_safetensors(const std::filesystem::path& path, FileSystem& files = FileSystem::posix(),
                          const Opaque& opaque = {});

/// One thing that is wrong with a checkpoint.
struct Damage {
  std::string file;            // below the checkpoint's folder; "manifest.binpb"
  std::string tensor;          // empty when the file as a whole is meant
  int64_t begin = 0, end = 0;  // bytes of the file, [begin, end); equal when none can be named
  std::string what;
};

/// Reads every byte of every file of a checkpoint's folder and returns all damage: a missing or torn
/// manifest, missing, unknown, short, long and flipped files (a damaged block is reported once for each
/// tensor with bytes in it), headers that do not say what the manifest says. Empty = sound. Never writes, and
/// throws IoError only when `path` is not there. `progress` is called now and then with bytes done and bytes
/// in all.
std::vector<Damage> verify_checkpoint(const std::filesystem::path& path,
                                      const std::function<void(int64_t, int64_t)>& progress = {},
                                      FileSystem& files = FileSystem::posix());

/// Values of a tensor that are infinite or NaN; `first` in row-major order of the whole tensor.
struct TensorNotFinite {
  std::string name;
  Section section = Section::model;
  Shape shape;
  NotFinite values;
};
struct Verification {
  std::vector<Damage> damage;
  /// Of undamaged blocks, whatever the manifest says of them: in the order in which they were found.
  std::vector<TensorNotFinite> not_finite;
};
/// verify_checkpoint() and, since it sees every byte, the values that are not finite: no damage, but nothing
/// to go on from.
Verification verify_contents(const std::filesystem::path& path,
                             const std::function<void(int64_t, int64_t)>& progress = {},
                             FileSystem& files = FileSystem::posix());

}  // namespace sherd
