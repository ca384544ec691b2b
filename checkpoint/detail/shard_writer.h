// Writer of one planned tensor file and its checksums.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include <sherd/checkpoint/files/file_system.h>
#include <sherd/checkpoint/save_plan.h>

namespace sherd {

/// From front to back, holding at most one checksum block of data. The file's folder exists.
class ShardWriter {
 public:
  /// Creates `root / record.path` and writes the header. @throws IoError, also when the name is taken.
  ShardWriter(FileSystem& files, const std::filesystem::path& root, const PlannedFile& plan);
  /// The next bytes of the data, of any number. @throws InvalidArgument past the end, IoError.
  void write(const void* data, int64_t bytes);
  /// Syncs and closes. @returns the checksum of every block. @throws InvalidArgument when bytes are missing.
  std::vector<uint64_t> finish();
  /// finish(), whose results go into the plan that the writer was made with.
  void finish_into(PlannedFile& plan);
  /// Returns the non-finite counts of each of the plan's entries, so far (after finish(): of all elements).
  const std::vector<NotFinite>& not_finite() const { return not_finite_; }

 private:
  void flush();
  void take_block(const char* from, int64_t bytes);

  std::unique_ptr<WritableFile> file_;
  int64_t data_bytes_ = 0, written_ = 0;
  std::vector<char> partial_;  // of the block that is not complete yet
  std::vector<uint64_t> checksums_;
  struct Entry {
    DType dtype;
    int64_t count;
    bool counts_not_finite;
  };
  std::vector<Entry> entries_;
  std::vector<NotFinite> not_finite_;
  size_t entry_ = 0;      // that the next block's first byte belongs to
  int64_t in_entry_ = 0;  // its elements counted so far
};

}  // namespace sherd
