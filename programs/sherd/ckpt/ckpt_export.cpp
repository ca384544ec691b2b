#include "ckpt_export.h"

#include <algorithm>

#include <fmt/format.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <sherd/checkpoint/detail/state_names.h>
#include <sherd/checkpoint/detail/weights_writer.h>
#include <sherd/checkpoint/weights.h>

#include "ckpt_source.h"
#include "elements.h"
#include "tensor_stream.h"
#include "text.h"

namespace sherd::tools {
namespace {

struct Item {
  std::string name = {};
  const CheckpointTensor* tensor = nullptr;
  DType dtype = DType::f32;  // in the file
};

// Returns the average of a weight, which is stored under one of a tied tensor's names; null without one.
const CheckpointTensor* average_of(const Manifest& m, const CheckpointTensor& weight) {
  for (const CheckpointTensor& t : m.tensors)
    if (t.name == weight.name || std::ranges::find(t.tied, weight.name) != t.tied.end())
      if (const CheckpointTensor* average = m.find(Section::optim, state_name(t.name, "ema"))) return average;
  return nullptr;
}

// Returns the items, those with the largest elements first, so that all are aligned.
std::vector<Item> items_of(const Manifest& m, const ExportOptions& options) {
  std::vector<Item> items;
  int64_t averages = 0;
  for (const CheckpointTensor& t : m.tensors) {
    const bool optim = section_of(m, t) == Section::optim;
    if (optim && !options.optim) continue;
    const CheckpointTensor* average = options.averages && !optim ? average_of(m, t) : nullptr;
    averages += average != nullptr ? 1 : 0;
    const CheckpointTensor& from = average != nullptr ? *average : t;
    items.push_back(
        {t.name, &from, optim || !is_float(t.dtype) ? t.dtype : options.dtype.value_or(from.dtype)});
    // Earlier versions stored a tied tensor once.
    for (const std::string& other : t.tied)
      if (m.find(t.section, other) == nullptr) items.push_back({other, &from, items.back().dtype});
  }
  if (options.averages && averages == 0)
    throw InvalidArgument("the source has no averages of weights (train_gpt --ema); leave out --ema");
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& a, const Item& b) { return size_of(a.dtype) > size_of(b.dtype); });
  return items;
}

class Exporter {
 public:
  Exporter(CheckpointReader& from, WeightsWriter& to, Progress& progress)
      : from_(from), to_(to), progress_(progress) {}

  void write(const Item& item) {
    const CheckpointTensor& t = *item.tensor;
    int64_t at = 0;
    stream_elements(from_, t, all_of(t), [&](const char* data, int64_t count) {
      if (item.dtype != t.dtype) {
        converted_.resize(static_cast<size_t>(count * size_of(item.dtype)));
        if (const auto lost = convert(data, t.dtype, converted_.data(), item.dtype, count))
          throw InvalidArgument(
              fmt::format("'{}' holds a value at {} that {} cannot hold; use another --dtype", t.name,
                          to_string(index_of(t.shape, at + *lost)), name_of(item.dtype)));
        data = converted_.data();
      }
      at += count;
      to_.append(data, count * size_of(item.dtype));
      progress_.add(count * size_of(item.dtype));
    });
  }

 private:
  CheckpointReader& from_;
  WeightsWriter& to_;
  Progress& progress_;
  std::vector<char> converted_;
};

}  // namespace

void export_tensors(const ExportOptions& options, const Console& console) {
  check_export_path(options.out);
  Source source = open_source(options.source, console.err);
  const std::vector<Item> items = items_of(source.reader.manifest(), options);
  if (items.empty())
    throw InvalidArgument(fmt::format("{} holds no weights{}", source.reader.path().string(),
                                      options.optim ? "" : "; --optim exports optimizer state, too"));
  std::vector<SafetensorsSpec> specs;
  int64_t bytes = 0;
  for (const Item& item : items) {
    specs.push_back({item.name, item.dtype, item.tensor->stored_shape()});
    bytes += numel_of(item.tensor->shape) * size_of(item.dtype);
  }
  {
    WeightsWriter writer(options.out, specs, {{"format", "pt"}}, options.max_shard_bytes);
    Progress progress(console.err, console.progress, "export", bytes);
    Exporter exporter(source.reader, writer, progress);
    for (const Item& item : items) exporter.write(item);
    writer.finish();
  }
  console.out << fmt::format("{} written: {}, {}\n", printable(options.out.string()),
                             count_text(static_cast<int64_t>(items.size()), "tensor"), bytes_text(bytes));
  console.finish();
}

}  // namespace sherd::tools
