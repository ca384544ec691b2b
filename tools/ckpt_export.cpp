#include "ckpt_export.h"

#include <algorithm>

#include <fmt/format.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <sherd/checkpoint/safetensors.h>

#include "ckpt_source.h"
#include "elements.h"
#include "tensor_stream.h"
#include "text.h"

namespace sherd::tools {
namespace {

namespace fs = std::filesystem;

struct Item {
  const CheckpointTensor* tensor = nullptr;
  DType dtype = DType::f32;  // in the file
  int64_t bytes() const { return numel_of(tensor->shape) * size_of(dtype); }
};

std::vector<Item> items_of(const Manifest& m, const ExportOptions& options) {
  std::vector<Item> items;
  for (const CheckpointTensor& t : m.tensors) {
    const bool optim = section_of(m, t) == Section::optim;
    if (optim && !options.optim) continue;
    items.push_back({&t, optim || !is_float(t.dtype) ? t.dtype : options.dtype.value_or(t.dtype)});
  }
  return items;
}

int64_t bytes_of(const std::vector<Item>& items) {
  int64_t bytes = 0;
  for (const Item& item : items) bytes += item.bytes();
  return bytes;
}

// In the checkpoint's order, a file full after the other.
std::vector<std::vector<Item>> dealt(const std::vector<Item>& items, int64_t max_bytes) {
  std::vector<std::vector<Item>> files;
  int64_t held = 0;
  for (const Item& item : items) {
    if (files.empty() || (held > 0 && held + item.bytes() > max_bytes)) {
      files.emplace_back();
      held = 0;
    }
    files.back().push_back(item);
    held += item.bytes();
  }
  return files;
}

class Exporter {
 public:
  Exporter(CheckpointReader& from, Progress& progress) : from_(from), progress_(progress) {}

  void write_file(const fs::path& path, std::vector<Item> items) {
    // Largest elements first, so that all are aligned.
    std::stable_sort(items.begin(), items.end(),
                     [](auto& a, auto& b) { return size_of(a.dtype) > size_of(b.dtype); });
    std::vector<SafetensorsSpec> specs;
    for (const Item& item : items) specs.push_back({item.tensor->name, item.dtype, item.tensor->shape});
    SafetensorsWriter writer(path, std::move(specs), {{"format", "pt"}});
    for (const Item& item : items) write_tensor(writer, item);
    writer.finish();
  }

  /// Finite elements that became infinite.
  int64_t overflows() const { return overflows_; }

 private:
  void write_tensor(SafetensorsWriter& writer, const Item& item) {
    const CheckpointTensor& t = *item.tensor;
    std::vector<char> converted;
    stream_elements(from_, t, all_of(t), [&](const char* data, int64_t count) {
      if (item.dtype != t.dtype) {
        converted.resize(static_cast<size_t>(count * size_of(item.dtype)));
        overflows_ += convert(data, t.dtype, converted.data(), item.dtype, count);
        data = converted.data();
      }
      writer.append(data, count * size_of(item.dtype));
      progress_.add(count * size_of(item.dtype));
    });
  }

  CheckpointReader& from_;
  Progress& progress_;
  int64_t overflows_ = 0;
};

void write_index(const fs::path& folder, const std::vector<std::vector<Item>>& files,
                 const std::vector<std::string>& names) {
  nlohmann::ordered_json index = {{"metadata", {{"total_size", 0}}},
                                  {"weight_map", nlohmann::json::object()}};
  int64_t bytes = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    bytes += bytes_of(files[i]);
    for (const Item& item : files[i]) index["weight_map"][item.tensor->name] = names[i];
  }
  index["metadata"]["total_size"] = bytes;
  const fs::path path = folder / "model.safetensors.index.json";
  const std::string text = index.dump(2) + "\n";
  const auto file = FileSystem::posix().create_new(path);
  if (!file) throw IoError(fmt::format("cannot create {}: it is there already", path.string()));
  file->write(text.data(), static_cast<int64_t>(text.size()));
  file->sync();
  file->close();
}

// Written beside its place and renamed, so that nobody takes a part for the whole.
void write_folder(const fs::path& out, const std::vector<std::vector<Item>>& files, Exporter& exporter) {
  FileSystem& system = FileSystem::posix();
  const fs::path temporary = out.string() + fmt::format(".tmp-{}", ::getpid());
  system.remove_all(temporary);
  try {
    system.create_folder(temporary);
    std::vector<std::string> names;
    for (size_t i = 0; i < files.size(); ++i) {
      names.push_back(fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size()));
      exporter.write_file(temporary / names.back(), files[i]);
    }
    write_index(temporary, files, names);
    system.sync_folder(temporary);
    rename_durably(system, temporary, out);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
}

}  // namespace

void export_tensors(const ExportOptions& options, const Console& console) {
  fs::path out = options.out;
  if (!out.has_filename()) out = out.parent_path();  // "DIR/"
  if (!is_file_name(out) && FileSystem::posix().kind(out) != FileSystem::Kind::none)
    throw InvalidArgument(fmt::format(
        "{} is there already; name a folder that is not, or a file ending in .safetensors", out.string()));
  Source source = open_source(options.source, console.err);
  const std::vector<Item> items = items_of(source.reader.manifest(), options);
  if (items.empty())
    throw InvalidArgument(fmt::format("{} holds no weights{}", source.reader.path().string(),
                                      options.optim ? "" : "; --optim exports optimizer state, too"));
  std::vector<std::vector<Item>> files{items};
  if (!is_file_name(out)) files = dealt(items, options.max_shard_bytes);
  int64_t overflows = 0;
  {
    Progress progress(console.err, console.progress, "export", bytes_of(items));
    Exporter exporter(source.reader, progress);
    if (is_file_name(out)) {
      exporter.write_file(out, items);
    } else {
      write_folder(out, files, exporter);
    }
    overflows = exporter.overflows();
  }
  if (overflows > 0)
    console.err << fmt::format("sherd ckpt export: {} did not fit {} and became infinite; use bf16 or fp32\n",
                               count_text(overflows, "element"), name_of(*options.dtype));
  console.out << fmt::format("{} written: {} in {}, {}\n", printable(out.string()),
                             count_text(static_cast<int64_t>(items.size()), "tensor"),
                             count_text(static_cast<int64_t>(files.size()), "file"),
                             bytes_text(bytes_of(items)));
  console.finish();
}

}  // namespace sherd::tools
