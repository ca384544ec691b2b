#include <sherd/fsdp/unsharded.h>

#include <algorithm>
#include <string>

#include <sherd/base/error.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/fsdp/runtime.h>

namespace sherd {
namespace {

void release(ShardRuntime& runtime) {
  for (const auto& unit : runtime.units()) unit->release();
}

}  // namespace

Unsharded::Unsharded(ModuleBase& root) {
  ShardRuntime& runtime = runtime_of(root);
  const auto& units = runtime.units();
  if (std::ranges::any_of(units, [](const auto& unit) { return unit->kept(); })) return;
  try {
    std::string failure;
    try {
      for (const auto& unit : units) unit->keep();
    } catch (const OutOfMemory& e) {
      failure = e.what();
    }
    // Before any gather, which a rank without memory would not take part in.
    try {
      runtime.require_equal(failure.empty() ? 0 : 1,
                            "Unsharded: the unsharded parameters do not fit on a rank");
    } catch (const ShapeMismatch& e) {
      failure = failure.empty() ? e.what() : failure;
    }
    if (!failure.empty())
      throw OutOfMemory("Unsharded: " + failure +
                        "; use the model without it, which gathers a unit at a time");
    for (const auto& unit : units) unit->unshard();
  } catch (...) {
    release(runtime);
    throw;
  }
  runtime_ = runtime.weak_from_this();
}

Unsharded::~Unsharded() {
  if (const auto runtime = runtime_.lock()) release(*runtime);
}

}  // namespace sherd
