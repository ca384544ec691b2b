#include "data.h"

#include <algorithm>

#include <fmt/format.h>

#include <sherd/checkpoint/file_system.h>
#include <sherd/checkpoint/manifest.h>
#include <sherd/kernels/error.h>

namespace train_gpt {
namespace {

namespace fs = std::filesystem;

/// Regular files below `folder`, sorted by path byte by byte: "a-b" before "a.b" before "a/b".
std::vector<std::string> files_below(const fs::path& folder) {
  std::vector<std::string> paths;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.symlink_status().type() == fs::file_type::regular) paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

void append_file(const fs::path& path, std::vector<uint8_t>& bytes) {
  const std::unique_ptr<sherd::ReadableFile> file = sherd::FileSystem::posix().open(path);
  const int64_t size = file->size();
  const size_t before = bytes.size();
  bytes.resize(before + static_cast<size_t>(size));
  file->read_at(0, bytes.data() + before, size);
}

}  // namespace

std::string default_data_folder() { return SHERD_DEFAULT_DATA; }

std::shared_ptr<const ByteData> ByteData::load(const fs::path& path) {
  std::vector<uint8_t> bytes;
  try {
    if (fs::is_directory(path)) {
      for (const std::string& file : files_below(path)) append_file(file, bytes);
    } else {
      append_file(path, bytes);
    }
  } catch (const fs::filesystem_error& e) {
    throw sherd::IoError(fmt::format("cannot read the data '{}': '{}': {}", path.string(), e.path1().string(),
                                     e.code().message()));
  }
  return std::make_shared<const ByteData>(path.string(), std::move(bytes));
}

Windows::Windows(std::shared_ptr<const ByteData> data, int64_t seq) : data_(std::move(data)), seq_(seq) {
  if (seq < 1) throw sherd::InvalidArgument(fmt::format("windows of {} tokens: must be 1 or more", seq));
  const int64_t windows = data_->size() > 0 ? (data_->size() - 1) / seq : 0;
  held_out_count_ = windows / 50;
  train_count_ = windows - held_out_count_;
  if (train_count_ < 1) {
    throw sherd::IoError(
        fmt::format("the data '{}' has {} bytes, but sequences of {} tokens need at least {}; name a larger "
                    "file or folder with "
                    "--data, or lower --seq",
                    data_->source(), data_->size(), seq, seq + 1));
  }
}

int64_t Windows::train_window(int64_t sequence) const {
  // A fixed odd multiplier scatters consecutive sequences over the text. Unsigned, so that it wraps.
  return static_cast<int64_t>(static_cast<uint64_t>(sequence) * 2654435761u %
                              static_cast<uint64_t>(train_count_));
}

std::string Windows::summary() const {
  return fmt::format("data {}: {} bytes, {} windows of {} to train on, {} held out", data_->source(),
                     data_->size(), train_count_, seq_, held_out_count_);
}

std::string Windows::describe() const {
  return fmt::format("{} bytes, XXH3 {:016x}, windows of {}", data_->size(),
                     sherd::checksum(data_->bytes().data(), data_->size()), seq_);
}

void Windows::fill(int64_t window, int32_t* inputs, int32_t* targets) const {
  const int64_t count = train_count_ + held_out_count_;
  if (window < 0 || window >= count) {
    throw sherd::InvalidArgument(fmt::format("window {} is outside the data's {} windows", window, count));
  }
  const uint8_t* begin = data_->bytes().data() + window * seq_;
  std::copy(begin, begin + seq_, inputs);
  std::copy(begin + 1, begin + seq_ + 1, targets);
}

}  // namespace train_gpt
