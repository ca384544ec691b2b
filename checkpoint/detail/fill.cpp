#include <sherd/checkpoint/detail/fill.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include <sherd/checkpoint/detail/box_runs.h>
#include <sherd/checkpoint/detail/widen.h>
#include <sherd/checkpoint/format/coverage.h>
#include <sherd/fsdp/weights_change.h>
#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

constexpr int64_t kReadElements = int64_t{4} << 20;  // elements read at a time

// Calls take(box) for boxes of at most kReadElements elements, or one row of the first dimension, that `whole` consists of.
template <class Take>
void each_piece(const Box& whole, Take take) {
  const int64_t row = numel_of(whole.size) / whole.size[0];
  const int64_t rows = std::max<int64_t>(1, kReadElements / row);
  for (int64_t at = 0; at < whole.size[0]; at += rows) {
    Box piece = whole;
    piece.offset[0] += at;
    piece.size[0] = std::min(rows, whole.size[0] - at);
    take(piece);
  }
}

// The elements of a parameter's box. With a step the elements between them are read, too, and dropped.
void read_piece(CheckpointReader& reader, const FilePart& from, const Box& box, std::vector<float>& values) {
  const int64_t step = from.part.step;
  Box stored = in_tensor(from.part, box);
  const int64_t first = stored.offset.back() % step;
  stored.offset.back() -= first;
  stored.size.back() *= step;
  values.resize(static_cast<size_t>(numel_of(stored.size)));
  reader.read(*from.tensor, {&stored, 1}, values.data());
  widen_in_place(from.tensor->dtype, values);
  if (step == 1) return;
  const size_t count = values.size() / static_cast<size_t>(step);
  for (size_t i = 0; i < count; ++i)
    values[i] = values[i * static_cast<size_t>(step) + static_cast<size_t>(first)];
  values.resize(count);
}

// This rank's part of a parameter or an f32 buffer, from all tensors that hold it.
void read_parts(CheckpointReader& reader, const Wanted& w, const FileParts& parts,
                std::vector<float>& values) {
  std::vector<float> piece;
  int64_t first = 0;
  for (const Box& own : w.boxes()) {
    for (const FilePart& from : parts) {
      const auto common = intersect(own, from.part.in_parameter);
      if (!common) continue;
      each_piece(*common, [&](const Box& box) {
        read_piece(reader, from, box, piece);
        each_run(box, box, own, [&](int64_t at, int64_t to, int64_t count) {
          std::copy_n(piece.begin() + at, count, values.begin() + first + to);
        });
      });
    }
    first += numel_of(own.size);
  }
}

// Codes as they are where the run keeps the same, with their scales; values elsewhere.
void take_codes(Stream& stream, CheckpointReader& reader, const Wanted& w, const FilePart& from) {
  const std::vector<Box> boxes = w.boxes();
  std::vector<float> values;
  if (!w.rest.quantized() || w.rest.code != from.scales.code || w.rest.block != from.scales.block) {
    read_codes(reader, *from.tensor, from.scales, boxes, values);
    upload(stream, w, values.data());
    return;
  }
  std::vector<uint8_t> codes(static_cast<size_t>(w.local.nbytes()));
  reader.read(*from.tensor, boxes, codes.data());
  ops::copy_from_host(stream, w.local, codes.data(), w.local.nbytes());
  std::vector<Box> of_blocks;
  for (const Box& box : boxes) of_blocks.push_back(in_blocks(box, w.rest.block));
  values.resize(static_cast<size_t>(w.rest.scales.numel()));
  reader.read(*from.scales.tensor, of_blocks, values.data());
  ops::copy_from_host(stream, w.rest.scales, values.data(), w.rest.scales.nbytes());
  stream.synchronize();
}

// Whether the tensor is stored as it is, so that boxes of it are those of the file.
bool is_stored_whole(const Wanted& w, const FileParts& parts) {
  const FilePart& first = parts.front();
  return first.tensor->shape == w.shape && first.part.in_parameter.size == w.shape &&
         first.part.in_tensor.size == w.shape && first.part.step == 1;
}

}  // namespace

std::vector<Wanted> wanted(ModuleBase& root, const std::vector<Optimizer*>& optimizers,
                           const LoadOptions& options, const char* function) {
  if (options.optimizer && optimizers.empty())
    throw InvalidArgument(fmt::format("{}: an optimizer is needed to load optimizer state into", function));
  std::vector<const Optimizer*> loaded;
  if (options.optimizer) loaded.assign(optimizers.begin(), optimizers.end());
  return wanted(root, options.model, loaded);
}

void fill(ShardRuntime& runtime, Agreement* ranks, const std::vector<Wanted>& all,
          const std::function<bool(size_t)>& take) {
  Stream& stream = runtime.device().compute();
  runtime.require_trained_weights("loading");
  WeightsChange change(runtime);
  change.begin_update();
  const auto take_all = [&] {
    // The model comes first. Averages of its weights restart, and keep that where the source has none.
    bool fills_model = false;
    const auto model_is_whole = [&] {
      if (std::exchange(fills_model, false)) runtime.weights_replaced();
    };
    for (size_t i = 0; i < all.size(); ++i) {
      const bool state = all[i].section == Section::optim;
      if (state) model_is_whole();
      fills_model = fills_model || !state;
      if (take(i) || !state || all[i].averages_weights) continue;
      ops::fill(stream, all[i].local, 0);
      if (all[i].rest.quantized()) ops::fill(stream, all[i].rest.scales, 0);
    }
    model_is_whole();
  };
  if (ranks != nullptr)
    ranks->run_collectively(take_all);
  else
    take_all();
  stream.synchronize();
  change.end();
}

void fill_from_files(ShardRuntime& runtime, Agreement& ranks, const std::vector<Wanted>& all,
                     CheckpointReader& reader, const std::vector<FileParts>& parts, LoadReport& report) {
  fill(runtime, &ranks, all, [&](size_t i) {
    const Wanted& w = all[i];
    const auto is_missing = [](const FilePart& from) { return from.tensor == nullptr; };
    if (parts[i].empty() || std::ranges::any_of(parts[i], is_missing)) return false;
    if (parts[i].front().scales.tensor != nullptr) {
      take_codes(runtime.device().compute(), reader, w, parts[i].front());
      return true;
    }
    const bool f32 = w.rests() || w.local.dtype() == DType::f32;
    std::vector<float> values(f32 ? static_cast<size_t>(w.local.numel())
                                  : static_cast<size_t>(w.local.nbytes() + 3) / sizeof(float));
    if (!f32 || is_stored_whole(w, parts[i])) {
      reader.read(*parts[i].front().tensor, w.boxes(), values.data());
      if (f32) widen_in_place(parts[i].front().tensor->dtype, values);
    } else {
      read_parts(reader, w, parts[i], values);
    }
    if (const std::string wrong = w.count ? check_count(values[0]) : ""; !wrong.empty())
      throw CorruptCheckpoint(fmt::format("'{}': '{}' {}", reader.path().string(), w.name, wrong));
    upload(runtime.device().compute(), w, values.data());
    return true;
  });
  report.training = reader.manifest().training;
  report.counts = reader.counts();
  report.notes = reader.manifest().notes;
}

bool equal_values(CheckpointReader& reader, const CheckpointTensor& a, const CheckpointTensor& b,
                  std::span<const Box> boxes) {
  if (a.dtype != b.dtype && !(widens_to_f32(a.dtype) && widens_to_f32(b.dtype))) return false;
  const auto values = [&](const CheckpointTensor& t) {
    int64_t bytes = 0;
    for (const Box& box : boxes) bytes += numel_of(box.size) * std::max<int64_t>(4, size_of(t.dtype));
    std::vector<float> read(static_cast<size_t>(bytes) / sizeof(float));
    reader.read(t, boxes, read.data());
    widen_in_place(t.dtype, read);
    return read;
  };
  const std::vector<float> of_a = values(a), of_b = values(b);
  return of_a.empty() || std::memcmp(of_a.data(), of_b.data(), of_a.size() * sizeof(float)) == 0;
}

}  // namespace sherd
