// Operations of streams: name and kind.
#pragma once

#include <cstdint>

#include <sherd/base/enum_table.h>

namespace sherd {

/// Kind of an operation, by which traces, plans and reports sort it.
enum class WorkKind : uint8_t {
  compute,  // every operation without a kind of its own
  product,  // of matrices, whatever is fused with it
  attention,
  attention_backward,
  gather,    // collectives that bring the same data to several ranks, or from them
  reduce,    // collectives that add
  exchange,  // messages between ranks, barriers
  optimizer,
  orthogonalize,  // Newton-Schulz and other polar factors
  copy,
  step,    // empty: begins a step
  update,  // empty: begins the optimizers' part of a step
  loss,    // cross entropy
  squares  // sums of squares and largest magnitudes, of gradients
};

inline constexpr EnumTable<WorkKind, 14> kWorkKinds{
    "compute",       "product", "attention", "attention_backward",
    "gather",        "reduce",  "exchange",  "optimizer",
    "orthogonalize", "copy",    "step",      "update",
    "loss",          "squares"};

/// Operation as it is queued. `name` is a static string, for traces and messages.
struct Operation {
  const char* name = "";
  WorkKind kind = WorkKind::compute;

  constexpr Operation() = default;
  constexpr Operation(const char* its_name, WorkKind its_kind = WorkKind::compute)
      : name(its_name), kind(its_kind) {}
};

}  // namespace sherd
