#include <sherd/checkpoint/safetensors.h>

#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <sherd/checkpoint/safetensors_format.h>
#include <sherd/kernels/error.h>

namespace sherd {
namespace {

using namespace safetensors;

std::string json_string(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw InvalidArgument("names and metadata must be valid UTF-8");
  }
}

int64_t bytes_of(const SafetensorsSpec& tensor) {
  return checked_bytes(tensor.shape, size_of(tensor.dtype)).value();
}

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

/// Length and padded JSON.
std::string make_header(const std::vector<SafetensorsSpec>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::vector<std::string> members;
  if (!metadata.empty()) {
    std::vector<std::string> pairs;
    for (const auto& [key, value] : metadata) pairs.push_back(json_string(key) + ":" + json_string(value));
    members.push_back(fmt::format("\"{}\":{{{}}}", kMetadata, fmt::join(pairs, ",")));
  }
  int64_t begin = 0;
  for (const SafetensorsSpec& tensor : tensors) {
    const int64_t end = begin + bytes_of(tensor);
    members.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                  json_string(tensor.name), type_name(tensor.dtype),
                                  fmt::join(tensor.shape, ","), begin, end));
    begin = end;
  }
  std::string header = fmt::format("{{{}}}", fmt::join(members, ","));
  header.resize((header.size() + 7) / 8 * 8, ' ');
  if (header.size() > kMaxHeaderBytes) {
    throw InvalidArgument(
        fmt::format("names, shapes and metadata take {} bytes; the format allows {}: write several "
                    "files",
                    header.size(), kMaxHeaderBytes));
  }
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header;
}

std::unique_ptr<WritableFile> create_beside(FileSystem& files, const std::filesystem::path& path) {
  using Kind = FileSystem::Kind;
  if (const Kind kind = files.kind(path); kind != Kind::none && kind != Kind::file) {
    throw IoError(fmt::format("cannot write '{}': it exists and is not a regular file", path.string()));
  }
  for (int number = 0;; ++number) {
    auto file = files.create_new(fmt::format("{}.tmp-{}-{}", path.string(), ::getpid(), number));
    if (file) return file;
  }
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsSpec> tensors,
                                     const std::map<std::string, std::string>& metadata, FileSystem& files)
    : path_(path), tensors_(std::move(tensors)), files_(files) {
  check(path_, tensors_);
  for (const SafetensorsSpec& tensor : tensors_) data_bytes_ += bytes_of(tensor);
  const std::string header = make_header(tensors_, metadata);
  file_ = create_beside(files_, path_);
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
  } catch (const IoError&) {  // whoever gets here has a better failure to report, or none
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
    discard();  // part of the piece may be in the file: there is no going on
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
  file_->sync();
  file_->close();
  rename_durably(files_, file_->path(), path_);
  file_.reset();
}

}  // namespace sherd
