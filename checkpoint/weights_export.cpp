#include <sherd/checkpoint/weights.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>

#include <fmt/format.h>

#include <sherd/checkpoint/detail/gather_whole.h>
#include <sherd/checkpoint/detail/weights_writer.h>
#include <sherd/kernels/ops/ops.h>

namespace sherd {
namespace {

// Of element `i` in row-major order.
Shape place_in(const Shape& shape, int64_t i) {
  Shape at(shape.size());
  for (size_t d = shape.size(); d-- > 0; i /= shape[d]) at[d] = i % shape[d];
  return at;
}

// Elements that are converted at a time.
constexpr size_t kChunk = size_t{1} << 16;

// Appends values as they are, or rounded to T.
template <class T>
void append(WeightsWriter& writer, const std::string& name, const Shape& shape,
            const std::vector<float>& values) {
  if constexpr (std::is_same_v<T, float>) {
    writer.append(values.data(), static_cast<int64_t>(values.size() * sizeof(float)));
    return;
  }
  std::vector<T> narrow;
  for (size_t begin = 0; begin < values.size(); begin += kChunk) {
    const size_t end = std::min(values.size(), begin + kChunk);
    narrow.clear();
    for (size_t i = begin; i < end; ++i) {
      narrow.emplace_back(values[i]);
      if (std::isfinite(values[i]) && !std::isfinite(static_cast<float>(narrow.back())))
        throw InvalidArgument(fmt::format(
            "export_weights: '{}' holds {} at {}, which {} cannot hold; export as f32", name, values[i],
            to_string(place_in(shape, static_cast<int64_t>(i))), name_of(dtype_of<T>())));
    }
    writer.append(narrow.data(), static_cast<int64_t>(narrow.size() * sizeof(T)));
  }
}

using Append = void (*)(WeightsWriter&, const std::string&, const Shape&, const std::vector<float>&);
Append append_as(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return append<float>;
    case DType::bf16:
      return append<bf16>;
    case DType::f16:
      return append<f16>;
    default:
      throw InvalidArgument(
          fmt::format("export_weights: weights are written as f32, bf16 or f16, not as {}", name_of(dtype)));
  }
}

// Persistent ones, wide elements first, so that all in a file are aligned.
std::vector<Buffer> buffers_to_write(const ModuleBase& root) {
  std::vector<Buffer> buffers;
  for (auto& [name, b] : root.named_buffers())
    if (b.persistent()) buffers.push_back(b);
  std::stable_sort(buffers.begin(), buffers.end(),
                   [](const Buffer& a, const Buffer& b) { return size_of(a.dtype()) > size_of(b.dtype()); });
  return buffers;
}

}  // namespace

void export_weights(ModuleBase& root, const std::filesystem::path& path, const ExportOptions& options) {
  const Append write = append_as(options.dtype);
  ShardRuntime& runtime = runtime_of(root);
  require_same_ranks(runtime, "export_weights");
  Stream& stream = runtime.device().compute();
  const auto params = root.named_parameters();
  const std::vector<Buffer> buffers = buffers_to_write(root);
  const auto narrow = std::find_if(buffers.begin(), buffers.end(),
                                 [&](const Buffer& b) { return size_of(b.dtype()) <= size_of(options.dtype); });
  std::optional<WeightsWriter> writer;
  if (runtime.mesh().world()->rank() == 0) {
    std::vector<SafetensorsSpec> specs;
    const auto add = [&](const Buffer& b) { specs.push_back({b.name(), b.dtype(), b.shape()}); };
    std::for_each(buffers.begin(), narrow, add);
    for (auto& [name, p] : params) specs.push_back({name, options.dtype, p.global_shape()});
    std::for_each(narrow, buffers.end(), add);
    auto metadata = options.metadata;
    metadata["format"] = "pt";
    writer.emplace(path, specs, std::move(metadata), options.max_shard_bytes);
  }
  const auto write_buffer = [&](const Buffer& b) {
    if (!writer) return;
    std::vector<char> values(static_cast<size_t>(b.data().nbytes()));
    ops::copy_to_host(stream, values.data(), b.data());
    writer->append(values.data(), b.data().nbytes());
  };
  std::for_each(buffers.begin(), narrow, write_buffer);
  for (auto& [name, p] : params) {
    const std::vector<float> whole = gather_whole(stream, p, p.shard());
    if (writer) write(*writer, name, p.global_shape(), whole);
  }
  std::for_each(narrow, buffers.end(), write_buffer);
  stream.synchronize();
  if (writer) writer->finish();
}

}  // namespace sherd
