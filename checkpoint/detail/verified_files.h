// Reader of a checkpoint's files that returns bytes only after their checksum matched.
#pragma once

#include <list>
#include <memory>
#include <vector>

#include <sherd/checkpoint/checkpoint_reader.h>

namespace sherd {

/// Keeps the files used last open, each with the block read last, so that neighbouring tensors do not read a
/// block twice.
class VerifiedFiles {
 public:
  /// Manifest and counts (to which it adds what it reads) stay where they are.
  VerifiedFiles(FileSystem& files, std::filesystem::path root, const Manifest& manifest, ReadCounts& counts);

  /// @throws CorruptCheckpoint when a file's length or header is not as recorded.
  void check(int file) { use(file); }
  /// Bytes [begin, begin + bytes) of a file, which lie in its data. @throws CorruptCheckpoint, IoError.
  void read(int file, int64_t begin, int64_t bytes, char* to);

 private:
  struct OpenFile {
    int number;
    std::unique_ptr<ReadableFile> file;
    int64_t block_number = -1;
    std::vector<char> block = {};
  };
  OpenFile& use(int file);
  void load_block(OpenFile& open, int64_t number);
  const CheckpointFile& record(int file) const { return manifest_.files[static_cast<size_t>(file)]; }

  FileSystem& files_;
  std::filesystem::path root_;
  const Manifest& manifest_;
  std::list<OpenFile> open_;   // used last first
  std::vector<bool> checked_;  // headers, by file
  ReadCounts& counts_;
};

}  // namespace sherd
