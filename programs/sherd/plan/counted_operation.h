// Operations of models that are planned only.
#pragma once

#include <sherd/base/error.h>
#include <sherd/kernels/device/stream.h>

namespace sherd::tools {

/// Queues an operation that is counted and has no kernel. @throws NotSupported on a device that is not dry.
inline void count_operation(Stream& s, Operation what, const Work& work) {
  if (!s.device().dry()) throw NotSupported("a model that is planned only has no kernels; use sherd plan");
  s.expect(work);
  s.submit(what, [](ExecutionContext&) {});
}

}  // namespace sherd::tools
