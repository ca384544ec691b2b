#include <sherd/checkpoint/detail/weights_writer.h>

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <sherd/base/error.h>
#include <sherd/checkpoint/files/detail/temporaries.h>
#include <sherd/checkpoint/safetensors/detail/safetensors_format.h>
#include <sherd/checkpoint/safetensors/detail/weights_index.h>
#include <sherd/checkpoint/weights.h>

namespace sherd {
namespace {

using Kind = FileSystem::Kind;

// "out/" names the folder "out".
std::filesystem::path without_slash(const std::filesystem::path& path) {
  return path.has_filename() || !path.has_relative_path() ? path : path.parent_path();
}

}  // namespace

bool is_weights_file(const std::filesystem::path& path, FileSystem& files) {
  return path.has_filename() && files.kind(path) != Kind::folder;
}

void check_export_path(const std::filesystem::path& path, FileSystem& files, Existing existing) {
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
  if (kind == Kind::folder && existing == Existing::refuse && !files.list(target).empty())
    refuse("this folder is not empty; name a new one with a slash at the end, or a file");
  if (kind == Kind::file || kind == Kind::other)
    refuse("it exists and is not a folder; name a new folder, or a file without the slash at the end");
}

WeightsPlan split_weights(const std::vector<SafetensorsSpec>& tensors,
                          const std::map<std::string, std::string>& metadata, int64_t max_shard_bytes) {
  WeightsPlan plan;
  const auto begin_file = [&] { plan.weights.push_back({.metadata = metadata}); };
  begin_file();
  for (const SafetensorsSpec& tensor : tensors) {
    const int64_t bytes = safetensors::bytes_of(tensor);
    if (!plan.weights.back().tensors.empty() && plan.weights.back().bytes > max_shard_bytes - bytes)
      begin_file();
    plan.weights.back().tensors.push_back(tensor);
    plan.weights.back().bytes += bytes;
  }
  const size_t count = plan.weights.size();
  for (size_t i = 0; i < count; ++i)
    plan.weights[i].name =
        count == 1 ? kWeightsFile : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, count);
  return plan;
}

void add_index(WeightsPlan& plan, std::optional<int64_t> parameters) {
  if (plan.weights.size() == 1) return;
  int64_t total = 0;
  nlohmann::ordered_json metadata = nlohmann::ordered_json::object(), where = metadata;
  std::vector<std::pair<std::string, std::string>> places;
  for (const WeightsFile& file : plan.weights) {
    total += file.bytes;
    for (const SafetensorsSpec& tensor : file.tensors) places.emplace_back(tensor.name, file.name);
  }
  if (parameters) std::sort(places.begin(), places.end());
  for (auto& [tensor, file] : places) where[tensor] = file;
  if (parameters) metadata["total_parameters"] = *parameters;
  metadata["total_size"] = total;
  const nlohmann::ordered_json index = {{"metadata", metadata}, {"weight_map", where}};
  plan.others[kWeightsIndex] = index.dump(2) + "\n";
}

WeightsWriter::WeightsWriter(const std::filesystem::path& path, const std::vector<SafetensorsSpec>& tensors,
                             std::map<std::string, std::string> metadata, int64_t max_shard_bytes,
                             FileSystem& files, Existing existing)
    : path_(without_slash(path)), files_(files), existing_(existing) {
  check_export_path(path, files_, existing_);
  if (is_weights_file(path, files_)) {
    plan_ = split_weights(tensors, metadata, std::numeric_limits<int64_t>::max());
    open_file();
  } else {
    plan_ = split_weights(tensors, metadata, max_shard_bytes);
    add_index(plan_);
    begin_folder();
  }
}

WeightsWriter::WeightsWriter(const std::filesystem::path& path, WeightsPlan plan, FileSystem& files,
                             Existing existing)
    : path_(without_slash(path)), files_(files), plan_(std::move(plan)), existing_(existing) {
  check_export_path(path_ / "", files_, existing_);
  begin_folder();
}

std::set<std::filesystem::path> WeightsWriter::inner_folders() const {
  std::set<std::filesystem::path> inner;
  for (const WeightsFile& file : plan_.weights)
    for (auto at = std::filesystem::path(file.name).parent_path(); !at.empty(); at = at.parent_path())
      inner.insert(at);
  return inner;
}

void WeightsWriter::begin_folder() {
  sweep_beside(files_, path_);
  TemporaryFolder made = create_folder_beside(files_, path_);
  temporary_ = std::move(made.path);
  lock_ = std::move(made.lock);
  try {
    for (const std::filesystem::path& inner : inner_folders()) files_.create_folder(temporary_ / inner);
    open_file();
  } catch (...) {
    files_.remove_all(temporary_);
    throw;
  }
}

WeightsWriter::~WeightsWriter() {
  open_.reset();
  if (!is_folder()) return;
  try {
    files_.remove_all(temporary_);
  } catch (const IoError&) {  // the caller has a better failure to report, or none
  }
}

void WeightsWriter::append(const void* data, int64_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    if (room_ == 0 && next_ < plan_.weights.size()) {
      finish_file();
      open_file();
      continue;
    }
    // Past the last file's end: its writer says so.
    const int64_t some = room_ == 0 ? bytes : std::min(bytes, room_);
    open_->append(from, some);
    from += some;
    bytes -= some;
    room_ -= some;
  }
}

bool WeightsWriter::finish() {
  finish_file();
  while (next_ < plan_.weights.size()) {  // nothing but empty tensors is left
    open_file();
    finish_file();
  }
  if (!is_folder()) return true;
  write_others();
  for (const std::filesystem::path& inner : inner_folders()) files_.sync_folder(temporary_ / inner);
  files_.sync_folder(temporary_);
  if (existing_ == Existing::accept_equal && files_.kind(path_) == Kind::folder &&
      !files_.list(path_).empty()) {
    require_equal();
    return false;  // the destructor removes what was written
  }
  rename_durably(files_, temporary_, path_);
  temporary_.clear();
  return true;
}

// The folder at the path holds every file of the temporary one.
void WeightsWriter::require_equal() const {
  constexpr int64_t kBlock = int64_t{1} << 20;
  std::set<std::string> names;
  for (const WeightsFile& file : plan_.weights) names.insert(file.name);
  for (const auto& [name, contents] : plan_.others) names.insert(name);
  for (const std::string& name : names) {
    const auto refuse = [&](const char* how) {
      throw IoError(
          fmt::format("cannot write weights to '{}': this folder is not empty, and '{}' {}: it holds "
                      "something else than the model "
                      "to be written; name a new one",
                      path_.string(), name, how));
    };
    if (files_.kind(path_ / name) != Kind::file) refuse("is not in it");
    const auto made = files_.open(temporary_ / name), there = files_.open(path_ / name);
    const int64_t size = made->size();
    if (there->size() != size) refuse("has another size");
    std::vector<char> a(static_cast<size_t>(std::min(kBlock, size))), b(a.size());
    for (int64_t at = 0; at < size; at += kBlock) {
      const int64_t bytes = std::min(kBlock, size - at);
      made->read_at(at, a.data(), bytes);
      there->read_at(at, b.data(), bytes);
      if (!std::equal(a.begin(), a.begin() + bytes, b.begin())) refuse("has other bytes");
    }
  }
}

std::filesystem::path WeightsWriter::path_of(const WeightsFile& file) const {
  return is_folder() ? temporary_ / file.name : path_;
}

void WeightsWriter::open_file() {
  const WeightsFile& file = plan_.weights[next_++];
  if (file.header.empty())
    open_.emplace(path_of(file), file.tensors, file.metadata, files_);
  else
    open_.emplace(path_of(file), file.header, file.bytes, files_);
  room_ = file.bytes;
}

void WeightsWriter::finish_file() {
  open_->finish();
  open_.reset();
}

void WeightsWriter::write_others() {
  for (const auto& [name, contents] : plan_.others) {
    const auto file = files_.create_new(temporary_ / name);
    if (file == nullptr)
      throw InvalidArgument(
          fmt::format("'{}': '{}' cannot be written beside weights of that name", path_.string(), name));
    file->write(contents.data(), static_cast<int64_t>(contents.size()));
    file->sync();
    file->close();
  }
}

}  // namespace sherd
