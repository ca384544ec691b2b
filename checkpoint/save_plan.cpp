#include <sherd/checkpoint/save_plan.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <sherd/base/error.h>
#include <sherd/checkpoint/safetensors/detail/safetensors_format.h>

namespace sherd {
namespace {

bool inside(const Box& box, const Shape& shape) {
  if (box.offset.size() != shape.size() || box.size.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (box.offset[d] < 0 || box.size[d] < 0 || box.offset[d] > shape[d] - box.size[d]) return false;
  }
  return true;
}

// Returns the error of a tensor by itself; empty without one.
std::string problem(const LocalTensor& t) {
  const Shape shape = at_least_1d(t.shape);
  int64_t elements = 0;
  for (const Box& box : t.boxes) {
    if (!inside(box, shape))
      return fmt::format("box {} at {} is not inside {}", to_string(box.size), to_string(box.offset),
                         to_string(shape));
    elements += numel_of(box.size);
  }
  const int64_t held = t.data.defined() ? t.data.numel() : (t.value ? 1 : 0);
  if (t.streamed) return t.data.defined() || t.value ? "it is streamed and in memory" : "";
  if (elements != (t.boxes.empty() ? 0 : held))
    return fmt::format("its boxes have {} elements, its data {}", elements, held);
  const DType held_dtype = t.low.defined() ? DType::bf16 : t.dtype;
  if (t.data.defined() && t.data.dtype() != held_dtype) return "its data has another dtype";
  if (t.value && t.dtype != DType::f32) return "a single value is f32";
  if (t.name == safetensors::kMetadata) return "this name is reserved by the file format";
  return "";
}

void check(std::span<const LocalTensor> tensors) {
  std::vector<std::string> problems;
  std::unordered_set<std::string> names[2];
  for (const LocalTensor& t : tensors) {
    if (!names[static_cast<size_t>(t.section)].insert(t.name).second)
      problems.push_back(fmt::format("'{}' is named twice", t.name));
    if (const std::string wrong = problem(t); !wrong.empty())
      problems.push_back(fmt::format("'{}': {}", t.name, wrong));
  }
  if (!problems.empty())
    throw InvalidArgument(fmt::format("tensors that cannot be saved: {}", fmt::join(problems, "; ")));
}

struct Draft {
  Section section;
  std::vector<PlannedEntry> entries;
  int64_t header_bytes = 0;
};

// The format allows headers of 100 MB.
constexpr int64_t kHeaderBytes = 50'000'000;

// One draft for each number of a box, and further ones where headers get long; section by section.
std::vector<Draft> deal(std::span<const LocalTensor> tensors) {
  std::vector<Draft> drafts;
  for (const Section section : {Section::model, Section::optim}) {
    std::vector<Draft> own;
    std::vector<size_t> open;  // the draft that takes a tensor's k-th box
    for (size_t i = 0; i < tensors.size(); ++i) {
      const LocalTensor& t = tensors[i];
      if (t.section != section) continue;
      int64_t first = 0;
      size_t k = 0;
      for (const Box& box : t.boxes) {
        const int64_t count = numel_of(box.size);
        if (count == 0) continue;
        if (k == open.size()) open.push_back(own.size());
        if (open[k] == own.size() || own[open[k]].header_bytes > kHeaderBytes) {
          open[k] = own.size();
          own.push_back({section, {}, 0});
        }
        Draft& draft = own[open[k++]];
        draft.entries.push_back({i, box, first, count, t.dtype, {}, t.counts_not_finite});
        draft.header_bytes += 2 * static_cast<int64_t>(t.name.size()) + 400;  // at most about
        first += count;
      }
    }
    for (Draft& draft : own) {
      std::stable_sort(draft.entries.begin(), draft.entries.end(), [&](auto& a, auto& b) {
        return size_of(tensors[a.tensor].dtype) > size_of(tensors[b.tensor].dtype);
      });
      drafts.push_back(std::move(draft));
    }
  }
  return drafts;
}

std::string header_of(const Draft& draft, std::span<const LocalTensor> tensors) {
  std::vector<SafetensorsSpec> specs;
  nlohmann::ordered_json sharding = nlohmann::ordered_json::object();
  for (const PlannedEntry& e : draft.entries) {
    const LocalTensor& t = tensors[e.tensor];
    const bool scalar = t.shape.empty();
    specs.push_back({t.name, t.dtype, scalar ? Shape{} : e.box.size, t.shape});
    sharding[t.name] = {{"saved_offsets", scalar ? Shape{} : e.box.offset}};
  }
  return safetensors::make_header(
      specs, {{"format", "pt"}, {"DCP_VERSION", "1.0"}, {"DCP_SHARDING_INFO", sharding.dump()}});
}

}  // namespace

int64_t data_bytes(std::span<const PlannedFile> files) {
  int64_t bytes = 0;
  for (const PlannedFile& file : files) bytes += file.record.data_bytes();
  return bytes;
}

bool read_in_place(const LocalTensor& t) {
  return t.data.defined() && t.data.place() == Place::host && !t.low.defined();
}

int64_t copied_bytes(std::span<const PlannedFile> files, std::span<const LocalTensor> tensors) {
  int64_t bytes = data_bytes(files);
  for (const PlannedFile& file : files)
    for (const PlannedEntry& e : file.entries)
      if (read_in_place(tensors[e.tensor])) bytes -= e.count * size_of(e.dtype);
  return bytes;
}

std::vector<PlannedFile> plan_files(int rank, std::span<const LocalTensor> tensors) {
  check(tensors);
  std::vector<PlannedFile> files;
  const std::vector<Draft> drafts = deal(tensors);
  for (size_t i = 0; i < drafts.size(); ++i) {
    const Draft& draft = drafts[i];
    const auto same = [&](const Draft& d) { return d.section == draft.section; };
    const auto count = std::count_if(drafts.begin(), drafts.end(), same);
    const auto number = 1 + std::count_if(drafts.begin(), drafts.begin() + static_cast<int64_t>(i), same);
    PlannedFile file;
    file.record.path = fmt::format("{}/shard-{:05}-model-{:05}-of-{:05}.safetensors", name_of(draft.section),
                                   rank + 1, number, count);
    file.header = header_of(draft, tensors);
    file.record.header_bytes = static_cast<int64_t>(file.header.size());
    file.record.header_checksum = checksum(file.header.data(), file.record.header_bytes);
    file.record.bytes = file.record.header_bytes;
    for (const PlannedEntry& e : draft.entries)
      file.record.bytes += e.count * size_of(tensors[e.tensor].dtype);
    file.entries = draft.entries;
    files.push_back(std::move(file));
  }
  return files;
}

Manifest part_of(std::span<const PlannedFile> files, std::span<const LocalTensor> tensors) {
  Manifest part;
  for (const LocalTensor& t : tensors)
    part.tensors.push_back({t.name, t.section, t.dtype, at_least_1d(t.shape), {}, t.tied, t.shape.empty()});
  for (size_t f = 0; f < files.size(); ++f) {
    part.files.push_back(files[f].record);
    int64_t begin = files[f].record.header_bytes;
    for (const PlannedEntry& e : files[f].entries) {
      part.tensors[e.tensor].pieces.push_back({e.box, static_cast<int>(f), begin, e.not_finite});
      begin += e.count * size_of(tensors[e.tensor].dtype);
    }
  }
  return part;
}

void PartMerger::add(Manifest part) {
  const int first_file = static_cast<int>(whole_.files.size());
  std::move(part.files.begin(), part.files.end(), std::back_inserter(whole_.files));
  for (CheckpointTensor& t : part.tensors) {
    const auto [found, is_new] = index_.try_emplace(std::pair(t.section, t.name), whole_.tensors.size());
    if (is_new) whole_.tensors.push_back({t.name, t.section, t.dtype, t.shape, {}, t.tied, t.scalar});
    CheckpointTensor& known = whole_.tensors[found->second];
    if (known.shape != t.shape || known.dtype != t.dtype)
      throw ShapeMismatch(fmt::format(
          "'{}' is {} {} on one rank and {} {} on another: every rank must save "
          "the same model",
          t.name, name_of(known.dtype), to_string(known.shape), name_of(t.dtype), to_string(t.shape)));
    for (CheckpointPiece& piece : t.pieces) {
      piece.file += first_file;
      known.pieces.push_back(std::move(piece));
    }
  }
}

}  // namespace sherd
