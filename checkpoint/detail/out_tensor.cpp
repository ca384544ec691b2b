#include <sherd/checkpoint/detail/out_tensor.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/checkpoint/detail/box_runs.h>
#include <sherd/checkpoint/detail/gather_whole.h>
#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

// Returns the place of element `i` in row-major order.
Shape place_in(const Shape& shape, int64_t i) {
  Shape at(shape.size());
  for (size_t d = shape.size(); d-- > 0; i /= shape[d]) at[d] = i % shape[d];
  return at;
}

// Elements that are converted at a time.
constexpr size_t kConvertedAtOnce = size_t{1} << 16;

// Returns the remedy for a value that the dtype cannot hold.
std::string remedy(const OutTensor& tensor) {
  if (!tensor.followed) return "export as f32";
  return fmt::format(
      "the folder to be followed stores it as {}; follow one that is converted to f32, or export "
      "without ExportOptions::like",
      name_of(tensor.dtype));
}

// Appends values as they are, or rounded to T.
template <class T>
void append(WeightsWriter& writer, const OutTensor& tensor, const std::vector<float>& values) {
  if constexpr (std::is_same_v<T, float>) {
    writer.append(values.data(), static_cast<int64_t>(values.size() * sizeof(float)));
    return;
  }
  std::vector<T> narrow;
  for (size_t begin = 0; begin < values.size(); begin += kConvertedAtOnce) {
    const size_t end = std::min(values.size(), begin + kConvertedAtOnce);
    narrow.clear();
    for (size_t i = begin; i < end; ++i) {
      narrow.emplace_back(values[i]);
      if (std::isfinite(values[i]) && !std::isfinite(static_cast<float>(narrow.back())))
        throw InvalidArgument(fmt::format("export_weights: '{}' holds {} at {}, which {} cannot hold; {}",
                                          tensor.name, values[i],
                                          to_string(place_in(tensor.shape, static_cast<int64_t>(i))),
                                          name_of(dtype_of<T>()), remedy(tensor)));
    }
    writer.append(narrow.data(), static_cast<int64_t>(narrow.size() * sizeof(T)));
  }
}

using Append = void (*)(WeightsWriter&, const OutTensor&, const std::vector<float>&);
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

// All of a buffer as it is.
void write_bytes(Stream& stream, const Tensor& buffer, WeightsWriter& writer) {
  std::vector<char> values(static_cast<size_t>(buffer.nbytes()));
  ops::copy_to_host(stream, values.data(), buffer);
  writer.append(values.data(), buffer.nbytes());
}

}  // namespace

void require_weights_dtype(DType dtype) { append_as(dtype); }

void write_tensor(Stream& stream, const std::vector<Wanted>& all, const OutTensor& tensor,
                  WeightsWriter* writer) {
  if (const Wanted& first = all[tensor.parts.front().wanted];
      !first.rests() && first.local.dtype() != DType::f32) {
    if (writer) write_bytes(stream, first.local, *writer);
    return;
  }
  const Shape shape = tensor.shape.empty() ? Shape{1} : tensor.shape;
  std::vector<float> values;
  for (const StoredPart& part : tensor.parts) {
    const Wanted& w = all[part.wanted];
    std::vector<float> box;
    if (w.param.defined())
      box = gather_box(stream, w.param, w.f32_values(stream), part.in_parameter);
    else if (writer)
      box = ops::to_floats(stream, w.local);
    if (writer == nullptr) continue;
    if (tensor.parts.size() == 1) {
      values = std::move(box);
    } else if (!box.empty()) {
      values.resize(static_cast<size_t>(numel_of(shape)));
      const Box into = in_steps(part.in_tensor, part.step);
      const Box all_of{Shape(into.size.size(), 0), in_steps(shape, part.step)};
      each_run(into, into, all_of, [&](int64_t from, int64_t to, int64_t count) {
        std::copy_n(box.begin() + from, count, values.begin() + to);
      });
    }
  }
  if (writer) append_as(tensor.dtype)(*writer, tensor, values);
}

}  // namespace sherd
