#include <sherd/checkpoint/shard_writer.h>

#include <algorithm>

#include <fmt/format.h>

#include <sherd/kernels/error.h>

namespace sherd {

ShardWriter::ShardWriter(FileSystem& files, const std::filesystem::path& root, const PlannedFile& plan)
    : file_(files.create_new(root / plan.record.path)), data_bytes_(plan.record.data_bytes()) {
  if (!file_)
    throw IoError(fmt::format("cannot create '{}': it is there already", (root / plan.record.path).string()));
  file_->write(plan.header.data(), static_cast<int64_t>(plan.header.size()));
}

void ShardWriter::write(const void* data, int64_t bytes) {
  if (bytes < 0 || bytes > data_bytes_ - written_)
    throw InvalidArgument(fmt::format("'{}': {} bytes written after {} of {}", file_->path().string(), bytes,
                                      written_, data_bytes_));
  const char* from = static_cast<const char*>(data);
  written_ += bytes;
  while (bytes > 0) {
    // Blocks that lie in the caller's memory as a whole are not copied.
    const auto held = static_cast<int64_t>(partial_.size());
    const int64_t n = std::min(bytes, kChecksumBlock - held);
    if (held == 0 && n == kChecksumBlock) {
      checksums_.push_back(checksum(from, n));
      file_->write(from, n);
    } else {
      partial_.insert(partial_.end(), from, from + n);
      if (static_cast<int64_t>(partial_.size()) == kChecksumBlock) flush();
    }
    from += n;
    bytes -= n;
  }
}

void ShardWriter::flush() {
  const auto bytes = static_cast<int64_t>(partial_.size());
  checksums_.push_back(checksum(partial_.data(), bytes));
  file_->write(partial_.data(), bytes);
  partial_.clear();
}

std::vector<uint64_t> ShardWriter::finish() {
  if (written_ != data_bytes_)
    throw InvalidArgument(
        fmt::format("'{}': only {} of {} bytes were written", file_->path().string(), written_, data_bytes_));
  if (!partial_.empty()) flush();
  file_->sync();
  file_->close();
  return std::move(checksums_);
}

}  // namespace sherd
