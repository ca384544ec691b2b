#include <sherd/checkpoint/detail/weights_writer.h>

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <sherd/checkpoint/files/detail/temporaries.h>
#include <sherd/checkpoint/weights.h>
#include <sherd/kernels/device/error.h>

namespace sherd {
namespace {

using Kind = FileSystem::Kind;

constexpr const char* kIndex = "model.safetensors.index.json";

// "out/" names the folder "out".
std::filesystem::path without_slash(const std::filesystem::path& path) {
  return path.has_filename() || !path.has_relative_path() ? path : path.parent_path();
}

int64_t bytes_of(const SafetensorsSpec& tensor) { return numel_of(tensor.shape) * size_of(tensor.dtype); }

}  // namespace

bool is_weights_file(const std::filesystem::path& path, FileSystem& files) {
  return path.has_filename() && files.kind(path) != Kind::folder;
}

void check_export_path(const std::filesystem::path& path, FileSystem& files) {
  const std::filesystem::path target = without_slash(path);
  const Kind kind = files.kind(target);
  const auto refuse = [&](const char* why) {
    throw IoError(fmt::format("cannot write weights to '{}': {}", target.string(), why));
  };
  if (!target.has_filename() || target.filename() == "." || target.filename() == "..")
    refuse("name a file, or a new folder with a slash at the end");
  if (is_weights_file(path, files)) {
    if (kind == Kind::other) refuse("it exists and is not a regular file");
    return;
  }
  if (kind == Kind::folder && !files.list(target).empty())
    refuse("this folder is not empty; name a new one with a slash at the end, or a file");
  if (kind == Kind::file || kind == Kind::other)
    refuse("it exists and is not a folder; name a new folder, or a file without the slash at the end");
}

WeightsWriter::WeightsWriter(const std::filesystem::path& path, const std::vector<SafetensorsSpec>& tensors,
                             std::map<std::string, std::string> metadata, int64_t max_shard_bytes,
                             FileSystem& files)
    : path_(without_slash(path)), metadata_(std::move(metadata)), files_(files), shards_(1) {
  check_export_path(path, files_);
  const bool one_file = is_weights_file(path, files_);
  for (const SafetensorsSpec& tensor : tensors) {
    const int64_t bytes = bytes_of(tensor);
    if (!one_file && !shards_.back().tensors.empty() && shards_.back().bytes > max_shard_bytes - bytes)
      shards_.emplace_back();
    shards_.back().tensors.push_back(tensor);
    shards_.back().bytes += bytes;
  }
  if (!one_file) {
    name_shards();
    sweep_beside(files_, path_);
    TemporaryFolder made = create_folder_beside(files_, path_);
    temporary_ = std::move(made.path);
    lock_ = std::move(made.lock);
  }
  try {
    open_shard();
  } catch (...) {
    if (is_folder()) files_.remove_all(temporary_);
    throw;
  }
}

WeightsWriter::~WeightsWriter() {
  open_.reset();
  if (!is_folder()) return;
  try {
    files_.remove_all(temporary_);
  } catch (const IoError&) {  // whoever gets here has a better failure to report, or none
  }
}

void WeightsWriter::append(const void* data, int64_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    if (room_ == 0 && next_ < shards_.size()) {
      finish_shard();
      open_shard();
      continue;
    }
    // Past the last shard's end: its writer says so.
    const int64_t some = room_ == 0 ? bytes : std::min(bytes, room_);
    open_->append(from, some);
    from += some;
    bytes -= some;
    room_ -= some;
  }
}

void WeightsWriter::finish() {
  finish_shard();
  while (next_ < shards_.size()) {  // nothing but empty tensors is left
    open_shard();
    finish_shard();
  }
  if (!is_folder()) return;
  if (shards_.size() > 1) write_index();
  files_.sync_folder(temporary_);
  rename_durably(files_, temporary_, path_);
  temporary_.clear();
}

std::filesystem::path WeightsWriter::path_of(const Shard& shard) const {
  return is_folder() ? temporary_ / shard.file : path_;
}

void WeightsWriter::name_shards() {
  for (size_t i = 0; i < shards_.size(); ++i)
    shards_[i].file = shards_.size() == 1
                          ? "model.safetensors"
                          : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards_.size());
}

void WeightsWriter::open_shard() {
  const Shard& shard = shards_[next_++];
  open_.emplace(path_of(shard), shard.tensors, metadata_, files_);
  room_ = shard.bytes;
}

void WeightsWriter::finish_shard() {
  open_->finish();
  open_.reset();
}

void WeightsWriter::write_index() {
  int64_t total = 0;
  nlohmann::ordered_json where = nlohmann::ordered_json::object();
  for (const Shard& shard : shards_) {
    total += shard.bytes;
    for (const SafetensorsSpec& tensor : shard.tensors) where[tensor.name] = shard.file;
  }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}}, {"weight_map", where}};
  const std::string text = index.dump(2) + "\n";
  const auto file = files_.create_new(temporary_ / kIndex);
  file->write(text.data(), static_cast<int64_t>(text.size()));
  file->sync();
  file->close();
}

}  // namespace sherd
