#include <sherd/checkpoint/weights.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include <sherd/checkpoint/safetensors.h>
#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

// Host elements of any float dtype as floats.
template <class T>
std::vector<float> widened(const std::vector<char>& raw, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    T v;
    std::memcpy(&v, raw.data() + i * sizeof(T), sizeof(T));
    values[i] = static_cast<float>(v);
  }
  return values;
}

std::vector<float> read_floats(const SafetensorsReader& file, const SafetensorsEntry& entry, int64_t first,
                               int64_t count) {
  std::vector<char> raw(static_cast<size_t>(count * size_of(*entry.dtype)));
  file.read(entry, first, count, raw.data());
  switch (*entry.dtype) {
    case DType::bf16:
      return widened<bf16>(raw, count);
    case DType::f16:
      return widened<f16>(raw, count);
    default:
      return widened<float>(raw, count);
  }
}

bool is_readable(const SafetensorsEntry& e) {
  return e.dtype == DType::f32 || e.dtype == DType::bf16 || e.dtype == DType::f16;
}

}  // namespace

void import_weights(Module& root, const std::filesystem::path& path) {
  ShardRuntime& runtime = runtime_of(root);
  Stream& stream = runtime.device().compute();
  const SafetensorsReader file(path);
  const auto params = root.named_parameters();
  std::vector<std::string> wrong;
  for (auto& [name, p] : params) {
    const SafetensorsEntry* e = file.find(name);
    if (e == nullptr) {
      wrong.push_back(fmt::format("'{}' is missing", name));
    } else if (!is_readable(*e)) {
      wrong.push_back(fmt::format("'{}' has dtype {} (F32, BF16 and F16 are read)", name, e->dtype_name));
    } else if (e->shape != p.global_shape()) {
      wrong.push_back(fmt::format("'{}' has shape {} where the model has {}", name, to_string(e->shape),
                                  to_string(p.global_shape())));
    }
  }
  for (auto& e : file.entries()) {
    const bool known = std::any_of(params.begin(), params.end(), [&](auto& p) { return p.first == e.name; });
    if (!known) wrong.push_back(fmt::format("'{}' is not a parameter of the model", e.name));
  }
  if (!wrong.empty())
    throw InvalidArgument(fmt::format("{} does not fit the model: {}; export it with the same model flags",
                                      path.string(), fmt::join(wrong, "; ")));

  runtime.begin_weights_change();
  for (auto& [name, p] : params) {
    std::vector<float> values;
    for (const GlobalRun& run : p.global_runs(p.shard_range())) {
      const std::vector<float> some = read_floats(file, *file.find(name), run.global.value, run.count);
      values.insert(values.end(), some.begin(), some.end());
    }
    ops::copy_from_host(stream, p.shard(), values.data(),
                        static_cast<int64_t>(values.size() * sizeof(float)));
  }
  stream.synchronize();
  runtime.weights_changed();
}

}  // namespace sherd
