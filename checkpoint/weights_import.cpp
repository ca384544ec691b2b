#include <optional>

#include <sherd/checkpoint/detail/agreement.h>
#include <sherd/checkpoint/model_state.h>
#include <sherd/checkpoint/weights.h>

namespace sherd {

LoadReport import_weights(ModuleBase& root, const std::filesystem::path& path, LoadOptions options) {
  Agreement ranks(*runtime_of(root).mesh().world());
  std::optional<CheckpointReader> reader;
  ranks.run_collectively([&] { reader.emplace(CheckpointReader::open(path)); });
  options.optimizer = false;
  return load_checkpoint(*reader, root, nullptr, options);
}

}  // namespace sherd
