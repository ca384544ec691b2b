// Options of a plan for whole matrices.
#pragma once

#include <cstdint>

#include <sherd/base/enum_table.h>

namespace sherd {

/// Mode by which matrices reach the ranks that compute them. `automatic` decides for each matrix. The others
/// force one kind of plan entry for all, and throw where that is impossible.
enum class MatrixMode { automatic, local, owner, gram, gather };
inline constexpr EnumTable<MatrixMode, 5> kMatrixModes{"auto", "local", "owner", "gram", "gather"};
inline const char* name_of(MatrixMode m) { return kMatrixModes.name(m); }

/// Plan's model of the machine; only ratios matter. Defaults: one CPU core and memory copies.
struct PlanCosts {
  double flops_per_second = 5e10;
  double bytes_per_second = 4e9;
};

struct MatrixPlanOptions {
  MatrixMode mode = MatrixMode::automatic;
  /// Let `automatic` use gram entries, whose sums over ranks round differently from one rank's.
  bool allow_inexact = false;
  int64_t payload_bytes = 4;  // per element of a message
  PlanCosts costs = {};
  /// Weight of state bytes against cost in the load that is balanced, in [0, 1]: a matrix's load is
  /// (1 - w) * its share of all costs + w * its share of all state bytes. Without state the load is the cost.
  double state_weight = 0.5;
};

}  // namespace sherd
