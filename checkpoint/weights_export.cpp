#include <sherd/checkpoint/weights.h>

#include <algorithm>
#include <optional>

#include <sherd/checkpoint/detail/agreement.h>
#include <sherd/checkpoint/detail/gather_whole.h>
#include <sherd/checkpoint/detail/out_tensor.h>

namespace sherd {
namespace {

// Parameters and persistent buffers under all of their own names, wide ones first, so that all in a file are aligned.
std::vector<OutTensor> tensors_of(const std::vector<Wanted>& all, DType dtype) {
  std::vector<OutTensor> tensors;
  for (size_t i = 0; i < all.size(); ++i) {
    const Wanted& w = all[i];
    const bool param = w.param.defined();
    tensors.push_back({w.name,
                       param ? dtype : w.local.dtype(),
                       param ? w.param.global_shape() : w.local.shape(),
                       {whole_part(i, w.shape)}});
    OutTensor copy = tensors.back();
    for (const std::string& name : w.tied) copy.name = name, tensors.push_back(copy);
  }
  std::stable_sort(tensors.begin(), tensors.end(), [](const OutTensor& a, const OutTensor& b) {
    return size_of(a.dtype) > size_of(b.dtype);
  });
  return tensors;
}

}  // namespace

bool export_weights(ModuleBase& root, const std::filesystem::path& path, const ExportOptions& options) {
  require_weights_dtype(options.dtype);
  ShardRuntime& runtime = runtime_of(root);
  require_same_ranks(runtime, "export_weights");
  Stream& stream = runtime.device().compute();
  const std::vector<Wanted> all = wanted(root, true, {});
  const std::vector<OutTensor> tensors = tensors_of(all, options.dtype);
  Agreement ranks(*runtime.mesh().world(), "export_weights");
  std::optional<WeightsWriter> writer;
  ranks.run_collectively([&] {
    if (ranks.rank() != 0) return;
    std::vector<SafetensorsSpec> specs;
    for (const OutTensor& t : tensors) specs.push_back({t.name, t.dtype, t.shape});
    auto metadata = options.metadata;
    metadata["format"] = "pt";
    writer.emplace(path, specs, std::move(metadata), options.max_shard_bytes, FileSystem::posix(),
                   options.existing);
  });
  for (const OutTensor& t : tensors) write_tensor(stream, all, t, writer ? &*writer : nullptr);
  stream.synchronize();
  // The other ranks wait until the files are on the medium, which may take minutes. A rank that ran to its
  // end before would take rank 0 for lost.
  bool written = true;
  ranks.run_collectively([&] {
    if (writer) written = writer->finish();
  });
  return written;
}

}  // namespace sherd
