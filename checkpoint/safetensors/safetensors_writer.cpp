#include <sherd/checkpoint/safetensors/safetensors.h>

#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/error.h>
#include <sherd/checkpoint/files/detail/temporaries.h>
#include <sherd/checkpoint/safetensors/detail/safetensors_format.h>

namespace sherd {
namespace {

using namespace safetensors;
using Kind = FileSystem::Kind;

void check(const std::filesystem::path& path, const std::vector<SafetensorsSpec>& tensors) {
  std::vector<std::string> problems;
  std::set<std::string_view> names;
  int64_t total = 0;
  for (const SafetensorsSpec& tensor : tensors) {
    const std::string what = fmt::format("'{}' {}", tensor.name, to_string(tensor.shape));
    if (tensor.name == kMetadata) problems.push_back(what + ": this name is reserved");
    if (!names.insert(tensor.name).second) problems.push_back(what + ": this name appears twice");
    const std::optional<int64_t> bytes = checked_bytes(tensor.shape, size_of(tensor.dtype));
    if (!bytes || __builtin_add_overflow(total, *bytes, &total)) {
      problems.push_back(what + ": sizes must be 0 or more and 2^63 - 1 bytes at most altogether");
    }
  }
  if (!problems.empty()) {
    throw InvalidArgument(fmt::format("cannot write '{}': {}", path.string(), fmt::join(problems, "; ")));
  }
}

void check_target(FileSystem& files, const std::filesystem::path& path) {
  if (const Kind kind = files.kind(path); kind != Kind::none && kind != Kind::file) {
    throw IoError(fmt::format("cannot write '{}': it exists and is not a regular file", path.string()));
  }
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsSpec> tensors,
                                     const std::map<std::string, std::string>& metadata, FileSystem& files)
    : path_(path), tensors_(std::move(tensors)), files_(files) {
  check(path_, tensors_);
  for (const SafetensorsSpec& tensor : tensors_) data_bytes_ += bytes_of(tensor);
  open(make_header(tensors_, metadata));
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, const std::string& header,
                                     int64_t data_bytes, FileSystem& files)
    : path_(path), files_(files), data_bytes_(data_bytes) {
  open(header);
}

void SafetensorsWriter::open(const std::string& header) {
  check_target(files_, path_);
  sweep_beside(files_, path_);
  TemporaryFile made = create_file_beside(files_, path_);
  file_ = std::move(made.file);
  lock_ = std::move(made.lock);
  try {
    file_->write(header.data(), static_cast<int64_t>(header.size()));
  } catch (...) {
    discard();
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() { discard(); }

void SafetensorsWriter::discard() noexcept {
  if (!file_) return;
  try {
    files_.remove_all(file_->path());
  } catch (const IoError&) {  // the caller has a better failure to report, or none
  }
  file_.reset();
}

void SafetensorsWriter::append(const void* data, int64_t bytes) {
  if (!file_)
    throw InvalidArgument(
        fmt::format("'{}' is finished or has failed; nothing can be appended", path_.string()));
  if (bytes < 0 || bytes > data_bytes_ - written_) {
    throw InvalidArgument(
        fmt::format("'{}': {} bytes appended after {} of {}", path_.string(), bytes, written_, data_bytes_));
  }
  try {
    file_->write(data, bytes);
  } catch (...) {
    discard();  // part of the piece may be in the file: it is unusable
    throw;
  }
  written_ += bytes;
}

void SafetensorsWriter::finish() {
  if (!file_)
    throw InvalidArgument(
        fmt::format("'{}' is finished or has failed; nothing can be finished", path_.string()));
  int64_t end = 0;
  for (const SafetensorsSpec& tensor : tensors_) {
    end += bytes_of(tensor);
    if (written_ < end) {
      throw InvalidArgument(
          fmt::format("'{}': only {} of {} bytes were appended; the first incomplete tensor is '{}'",
                      path_.string(), written_, data_bytes_, tensor.name));
    }
  }
  if (written_ < data_bytes_) {
    throw InvalidArgument(
        fmt::format("'{}': only {} of {} bytes were appended", path_.string(), written_, data_bytes_));
  }
  file_->sync();
  file_->close();
  rename_durably(files_, file_->path(), path_);
  file_.reset();
}

}  // namespace sherd
