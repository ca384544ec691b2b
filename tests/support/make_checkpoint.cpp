#include "support/make_checkpoint.h"

#include <algorithm>

#include <sherd/checkpoint/detail/shard_writer.h>
#include <sherd/checkpoint/files/checkpoint_folder.h>
#include <sherd/checkpoint/save_plan.h>

namespace sherd::test {
namespace {

// Part `rank` of one dimension.
std::vector<Box> cut_dimension(size_t d, int rank, int ranks, const Shape& shape) {
  const int64_t each = (shape[d] + ranks - 1) / ranks;
  Box box{Shape(shape.size(), 0), shape};
  box.offset[d] = std::min<int64_t>(rank * each, shape[d]);
  box.size[d] = std::min<int64_t>((rank + 1) * each, shape[d]) - box.offset[d];
  return {box};
}

}  // namespace

WholeTensor WholeTensor::random(std::string name, Shape shape, uint64_t seed, Section section) {
  std::vector<float> values(static_cast<size_t>(numel_of(shape)));
  uint64_t state = seed * 2654435761u + 1;
  for (float& v : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    v = static_cast<float>(static_cast<int64_t>(state >> 32) - (int64_t{1} << 31)) * 0x1p-31f;
  }
  return of(std::move(name), std::move(shape), values, section);
}

std::vector<Box> cut_rows(int rank, int ranks, const Shape& shape) {
  return cut_dimension(0, rank, ranks, shape);
}

std::vector<Box> cut_columns(int rank, int ranks, const Shape& shape) {
  return cut_dimension(shape.size() - 1, rank, ranks, shape);
}

std::vector<Box> cut_flat(int rank, int ranks, const Shape& shape) {
  // Rank r has r + 1 shares.
  const int64_t elements = numel_of(shape), shares = int64_t{ranks} * (ranks + 1) / 2;
  const auto begin = [&](int64_t r) { return ParamIndex(elements * (r * (r + 1) / 2) / shares); };
  return boxes_of(shape, {begin(rank), begin(rank + 1)});
}

std::string bytes_of_box(const WholeTensor& tensor, const Box& box) {
  std::string bytes;
  const auto size = static_cast<size_t>(size_of(tensor.dtype));
  for (int64_t i = 0; i < numel_of(box.size); ++i) {
    int64_t element = 0, rest = i, stride = 1;
    for (size_t d = box.size.size(); d-- > 0;) {
      element += (box.offset[d] + rest % box.size[d]) * stride;
      rest /= box.size[d];
      stride *= tensor.shape[d];
    }
    bytes += tensor.bytes.substr(static_cast<size_t>(element) * size, size);
  }
  return bytes;
}

std::filesystem::path make_checkpoint(const std::filesystem::path& save_folder, int ranks,
                                      const std::vector<WholeTensor>& tensors, const TrainingState& training,
                                      const Cut& cut, FileSystem& files) {
  CheckpointFolder folder(save_folder, files);
  const std::filesystem::path temporary = folder.temporary(training.step);
  files.create_folder(temporary);
  for (const WholeTensor& t : tensors) files.create_folder(temporary / name_of(t.section));
  PartMerger merger;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<LocalTensor> local;
    for (const WholeTensor& t : tensors) {
      local.push_back({t.name, t.section, t.dtype, t.shape, cut(rank, ranks, t.shape), {}});
      local.back().streamed = true;
      local.back().tied = t.tied;
    }
    std::vector<PlannedFile> plan = plan_files(rank, local);
    for (PlannedFile& file : plan) {
      ShardWriter writer(files, temporary, file);
      for (const PlannedEntry& e : file.entries) {
        const std::string bytes = bytes_of_box(tensors[e.tensor], e.box);
        writer.write(bytes.data(), static_cast<int64_t>(bytes.size()));
      }
      writer.finish_into(file);
    }
    merger.add(part_of(plan, local));
  }
  Manifest manifest = merger.take();
  manifest.training = training;
  return folder.commit(temporary, training.step, manifest);
}

}  // namespace sherd::test
