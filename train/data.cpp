#include <sherd/train/data.h>

#include <algorithm>
#include <new>
#include <system_error>

#include <fmt/format.h>

#include <sherd/checkpoint/files/file_system.h>
#include <sherd/checkpoint/format/manifest.h>
#include <sherd/kernels/device/error.h>

namespace sherd {
namespace {

namespace fs = std::filesystem;

/// Adds the regular files below `folder`; links are not followed. A recursive iterator would not say which of
/// the folders could not be read.
void add_files_below(const fs::path& folder, std::vector<std::string>& paths) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const fs::file_type type = entry->symlink_status(error).type();
    if (error)
      throw IoError(fmt::format("cannot read the data: '{}': {}", entry->path().string(), error.message()));
    if (type == fs::file_type::regular) paths.push_back(entry->path().string());
    if (type == fs::file_type::directory) add_files_below(entry->path(), paths);
  }
  if (error)
    throw IoError(fmt::format("cannot read the data: cannot list the folder '{}': {}", folder.string(),
                              error.message()));
}

/// Sorted by path byte by byte: "a-b" before "a.b" before "a/b".
std::vector<std::string> files_below(const fs::path& folder) {
  std::vector<std::string> paths;
  add_files_below(folder, paths);
  std::sort(paths.begin(), paths.end());
  return paths;
}

void append_file(const fs::path& path, std::vector<uint8_t>& bytes) {
  const std::unique_ptr<ReadableFile> file = FileSystem::posix().open(path);
  const int64_t size = file->size();
  const size_t before = bytes.size();
  bytes.resize(before + static_cast<size_t>(size));
  file->read_at(0, bytes.data() + before, size);
}

}  // namespace

std::shared_ptr<const ByteData> ByteData::load(const fs::path& path) {
  std::vector<uint8_t> bytes;
  try {
    if (FileSystem::posix().kind(path) == FileSystem::Kind::folder) {
      for (const std::string& file : files_below(path)) append_file(file, bytes);
    } else {
      append_file(path, bytes);
    }
  } catch (const std::bad_alloc&) {
    throw OutOfMemory(fmt::format(
        "out of memory while reading the data '{}', which is held as a whole ({} bytes so far); name "
        "a smaller file or folder with --data",
        path.string(), bytes.size()));
  }
  return std::make_shared<const ByteData>(path.string(), std::move(bytes));
}

ByteWindows::ByteWindows(std::shared_ptr<const ByteData> data, int64_t seq)
    : data_(std::move(data)), seq_(seq) {
  if (seq < 1) throw InvalidArgument(fmt::format("windows of {} tokens: must be 1 or more", seq));
  const int64_t windows = data_->size() > 0 ? (data_->size() - 1) / seq : 0;
  held_out_count_ = windows / 50;
  train_count_ = windows - held_out_count_;
  if (train_count_ < 1) {
    throw IoError(
        fmt::format("the data '{}' has {} bytes, but sequences of {} tokens need at least {}; name a larger "
                    "file or folder with "
                    "--data, or lower --seq",
                    data_->source(), data_->size(), seq, seq + 1));
  }
}

int64_t ByteWindows::train_window(int64_t sequence) const {
  // A fixed odd multiplier scatters consecutive sequences over the text. Unsigned, so that it wraps.
  return static_cast<int64_t>(static_cast<uint64_t>(sequence) * 2654435761u %
                              static_cast<uint64_t>(train_count_));
}

std::string ByteWindows::summary() const {
  return fmt::format("data {}: {} bytes, {} windows of {} to train on, {} held out", data_->source(),
                     data_->size(), train_count_, seq_, held_out_count_);
}

std::string ByteWindows::describe() const {
  return fmt::format("{} bytes, XXH3 {:016x}, windows of {}", data_->size(),
                     checksum(data_->bytes().data(), data_->size()), seq_);
}

void ByteWindows::fill(int64_t window, int32_t* inputs, int32_t* targets) const {
  const int64_t count = train_count_ + held_out_count_;
  if (window < 0 || window >= count) {
    throw InvalidArgument(fmt::format("window {} is outside the data's {} windows", window, count));
  }
  const uint8_t* begin = data_->bytes().data() + window * seq_;
  std::copy(begin, begin + seq_, inputs);
  std::copy(begin + 1, begin + seq_ + 1, targets);
}

}  // namespace sherd
