// Checks of indices: tokens, targets, places of rows.
#pragma once

#include <cstdint>

#include <sherd/kernels/device/stream.h>

namespace sherd {

struct IndicesKernels {
  static constexpr const char* kName = "indices";
  static const IndicesKernels* reference();
  static const IndicesKernels* cpu();
  static const IndicesKernels* cuda();

  /// Finds an index outside [first, bound). On the CPU it throws InvalidArgument; `op` and `what` are static strings for
  /// the message. A device that runs beside the host fails the stream at a later call instead; kernels that use the indices
  /// skip those outside meanwhile.
  void (*check_indices)(ExecutionContext&, const char* op, const char* what, const int32_t* indices,
                        int64_t count, int64_t bound, int64_t first);
};

}  // namespace sherd
