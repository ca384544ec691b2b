#include <sherd/fsdp/accumulate.h>

namespace sherd {

Accumulate::Accumulate(ModuleBase& root, GradientSync sync) {
  ShardRuntime& runtime = runtime_of(root);
  if (!runtime.last_microbatch())
    throw InvalidArgument(
        "Accumulate: more microbatches have been announced already, by another scope or by "
        "set_last_microbatch(false)");
  runtime_ = runtime.weak_from_this();
  runtime.set_last_microbatch(false);
  runtime.set_hold_gradients(sync == GradientSync::last);
}

Accumulate::~Accumulate() {
  const auto runtime = runtime_.lock();
  if (!runtime) return;
  runtime->set_last_microbatch(true);
  runtime->set_hold_gradients(false);
}

}  // namespace sherd
