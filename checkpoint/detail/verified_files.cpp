#include <sherd/checkpoint/detail/verified_files.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/base/printable.h>

namespace sherd {
namespace {

constexpr size_t kOpenFiles = 128;

}  // namespace

VerifiedFiles::VerifiedFiles(FileSystem& files, std::filesystem::path root, const Manifest& manifest,
                             ReadCounts& counts)
    : files_(files),
      root_(std::move(root)),
      manifest_(manifest),
      checked_(manifest.files.size()),
      counts_(counts) {}

VerifiedFiles::OpenFile& VerifiedFiles::use(int number) {
  const auto found =
      std::find_if(open_.begin(), open_.end(), [&](const OpenFile& f) { return f.number == number; });
  if (found != open_.end()) {
    open_.splice(open_.begin(), open_, found);
    return open_.front();
  }
  const CheckpointFile& expected = record(number);
  const std::filesystem::path path = root_ / expected.path;
  if (files_.kind(path) == FileSystem::Kind::none)
    throw CorruptCheckpoint(fmt::format("'{}' is missing", printable(path.string())));
  std::unique_ptr<ReadableFile> file = files_.open(path);
  if (const int64_t size = file->size(); size != expected.bytes) {
    throw CorruptCheckpoint(
        fmt::format("'{}' has {} bytes instead of {}: it was cut off, extended or replaced", path.string(),
                    size, expected.bytes));
  }
  const auto index = static_cast<size_t>(number);
  if (manifest_.checksums && !checked_[index]) {
    std::vector<char> header(static_cast<size_t>(expected.header_bytes));
    file->read_at(0, header.data(), expected.header_bytes);
    if (checksum(header.data(), expected.header_bytes) != expected.header_checksum) {
      throw CorruptCheckpoint(
          fmt::format("'{}': the checksum of its header, bytes [0, {}), differs: it is damaged",
                      path.string(), expected.header_bytes));
    }
  }
  checked_[index] = true;
  if (open_.size() == kOpenFiles) open_.pop_back();
  open_.push_front({number, std::move(file)});
  return open_.front();
}

void VerifiedFiles::load_block(OpenFile& open, int64_t number) {
  const CheckpointFile& expected = record(open.number);
  const int64_t begin = expected.block_begin(number), bytes = expected.block_end(number) - begin;
  open.block_number = -1;
  open.block.resize(static_cast<size_t>(bytes));
  open.file->read_at(begin, open.block.data(), bytes);
  counts_.bytes_read += bytes;
  counts_.blocks_verified += 1;
  if (checksum(open.block.data(), bytes) != expected.block_checksums[static_cast<size_t>(number)]) {
    throw CorruptCheckpoint(fmt::format("'{}': the checksum of bytes [{}, {}) differs: they are damaged",
                                        open.file->path().string(), begin, begin + bytes));
  }
  open.block_number = number;
}

void VerifiedFiles::read(int number, int64_t begin, int64_t bytes, char* to) {
  OpenFile& open = use(number);
  if (!manifest_.checksums) {
    open.file->read_at(begin, to, bytes);
    counts_.bytes_read += bytes;
    return;
  }
  const CheckpointFile& expected = record(number);
  for (const int64_t end = begin + bytes; begin < end;) {
    const int64_t block = (begin - expected.header_bytes) / kChecksumBlock;
    if (open.block_number != block) load_block(open, block);
    const int64_t count = std::min(end, expected.block_end(block)) - begin;
    std::memcpy(to, open.block.data() + (begin - expected.block_begin(block)), static_cast<size_t>(count));
    begin += count;
    to += count;
  }
}

}  // namespace sherd
