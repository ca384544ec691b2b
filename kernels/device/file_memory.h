// Memory that is a file without a name.
#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <string>

#include <sherd/kernels/device/allocator.h>

namespace sherd {

/// Source of blocks that are mapped ranges of one file. The file has no name, so nothing of it outlives the process. A block's
/// space is reserved when it is allocated: a full disk is an error then, not in the middle of training. The process's
/// resident memory does not grow by what read() and write() move. Thread-safe.
class FileMemory final : public MemorySource {
 public:
  /// The file is made at the first allocation.
  explicit FileMemory(std::filesystem::path folder) : folder_(std::move(folder)) {}
  ~FileMemory() override;

  /// @throws IoError naming the folder: it is missing, full, or at a limit: quota, or RLIMIT_FSIZE where the program
  /// ignores SIGXFSZ (report_file_size_limit()).
  void* allocate(int64_t bytes) override;
  void release(void* p, int64_t bytes) noexcept override;
  std::string owner() const override { return "the offload folder '" + folder_.string() + "'"; }

  /// Copy bytes between blocks and other memory. @throws IoError, also where the file was made shorter.
  void read(void* to, const void* from, int64_t bytes) const;
  void write(void* to, const void* from, int64_t bytes) const;
  /// Returns whether the address is in a block.
  bool holds(const void* p) const;

 private:
  struct Block {
    int64_t bytes, offset;  // in the file
  };
  void open();
  /// Returns the place in the file of [p, p + bytes).
  int64_t offset_of(const void* p) const;
  [[noreturn]] void fail(const std::string& what, int error) const;

  const std::filesystem::path folder_;
  mutable std::mutex mutex_;
  int file_ = -1;
  int64_t end_ = 0;
  std::map<const char*, Block> blocks_;
};

}  // namespace sherd
