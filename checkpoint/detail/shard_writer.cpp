#include <sherd/checkpoint/detail/shard_writer.h>

#include <algorithm>

#include <fmt/format.h>

#include <sherd/base/error.h>

namespace sherd {

ShardWriter::ShardWriter(FileSystem& files, const std::filesystem::path& root, const PlannedFile& plan)
    : file_(files.create_new(root / plan.record.path)), data_bytes_(plan.record.data_bytes()) {
  if (!file_)
    throw IoError(fmt::format("cannot create '{}': it is there already", (root / plan.record.path).string()));
  for (const PlannedEntry& e : plan.entries) entries_.push_back({e.dtype, e.count, e.counts_not_finite});
  not_finite_.resize(entries_.size());
  file_->write(plan.header.data(), static_cast<int64_t>(plan.header.size()));
}

// Blocks begin and end between elements: a block is a multiple of every element's size, and entries lie in
// the order of those, largest first.
void ShardWriter::take_block(const char* from, int64_t bytes) {
  checksums_.push_back(checksum(from, bytes));
  file_->write(from, bytes);
  while (bytes > 0) {
    const Entry& e = entries_[entry_];
    const int64_t n = std::min(bytes / size_of(e.dtype), e.count - in_entry_);
    if (e.counts_not_finite) count_not_finite(e.dtype, from, n, in_entry_, not_finite_[entry_]);
    from += n * size_of(e.dtype);
    bytes -= n * size_of(e.dtype);
    in_entry_ += n;
    if (in_entry_ < e.count) continue;
    ++entry_;
    in_entry_ = 0;
  }
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
      take_block(from, n);
    } else {
      partial_.insert(partial_.end(), from, from + n);
      if (static_cast<int64_t>(partial_.size()) == kChecksumBlock) flush();
    }
    from += n;
    bytes -= n;
  }
}

void ShardWriter::flush() {
  take_block(partial_.data(), static_cast<int64_t>(partial_.size()));
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

void ShardWriter::finish_into(PlannedFile& plan) {
  plan.record.block_checksums = finish();
  for (size_t i = 0; i < plan.entries.size(); ++i) plan.entries[i].not_finite = not_finite_[i];
}

}  // namespace sherd
