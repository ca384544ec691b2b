// Options of an optimizer of whole matrices beside its rule: momentum, decay, plan, messages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sherd/base/enum_table.h>
#include <sherd/kernels/device/dtype.h>
#include <sherd/optim/whole/transient_bytes.h>

namespace sherd {

/// Mode by which matrices reach the ranks that compute them. `automatic` decides for each matrix. The others
/// force one kind of plan entry for all, and throw where that is impossible.
enum class MatrixMode { automatic, local, owner, gram, gather };

/// Plan's model of the machine; only ratios matter. Defaults: one CPU core and memory copies.
struct PlanCosts {
  double flops_per_second = 5e10;
  double bytes_per_second = 4e9;
};

/// decoupled w *= 1 - lr*wd; independent w *= 1 - wd; l2 g += wd*w before the momentum; palm w *= 1 -
/// lr^2*wd.
enum class MatrixDecay { decoupled, independent, l2, palm };

/// Method for tensor-parallel matrices. duplicated gathers them over that dimension and computes on every one of its
/// ranks (the same bits as one rank). distributed computes parts and sums over it (MatrixRule::compute_parts(); Muon: the
/// gram form, also when the standard form is requested: that is the gram form restarted after every step).
enum class MatrixTensorMode { duplicated, distributed };

inline constexpr EnumTable<MatrixMode, 5> kMatrixModes{"auto", "local", "owner", "gram", "gather"};
inline constexpr EnumTable<MatrixDecay, 4> kMatrixDecays{"decoupled", "independent", "l2", "palm"};
inline constexpr EnumTable<MatrixTensorMode, 2> kMatrixTensorModes{"duplicated", "distributed"};
inline const char* name_of(MatrixMode m) { return kMatrixModes.name(m); }
inline const char* name_of(MatrixDecay d) { return kMatrixDecays.name(d); }
inline const char* name_of(MatrixTensorMode m) { return kMatrixTensorModes.name(m); }

struct MomentumOptions {
  /// buf = momentum * buf + (1 - momentum) * g; the input of the rule is buf, or with nesterov the same step again from
  /// it (torch.optim.Muon's form).
  float momentum = 0.95f;
  bool nesterov = true;
  MatrixDecay decay = MatrixDecay::decoupled;
  MatrixMode mode = MatrixMode::automatic;
  /// Let `automatic` use gram entries, whose sums over ranks round differently from one rank's.
  bool allow_inexact = false;
  MatrixTensorMode tensor = MatrixTensorMode::duplicated;
  /// dtype of matrices in messages: f32, bf16 or f16. With a 16-bit one every mode rounds alike. Under f16
  /// the results are sent as f16, but the momentum, whose scale is unknown, as bf16: f16 cannot represent
  /// gradients of 1e-5.
  DType payload = DType::f32;
  /// Maximum bytes of a rank's messages and matrices in flight. A matrix that needs more alone is sent alone.
  /// 0: default_transient_bytes of the device, the minimum over the team. No result depends on it.
  int64_t transient_bytes = 0;
  PlanCosts costs = {};
  /// Weight of state bytes against cost in the load that plans balance, in [0, 1]: a matrix's load is
  /// (1 - w) * its share of all costs + w * its share of all state bytes. Without MatrixRule::state() the load is the cost.
  double state_weight = 0.5;
};

/// Returns all invalid options, each with its value; empty when valid.
[[nodiscard]] std::vector<std::string> problems_of(const MomentumOptions& options);
/// Returns all options that results depend on, in words.
[[nodiscard]] std::string to_string(const MomentumOptions& options);
/// Returns the factor of the weights for one step; 1 under l2.
[[nodiscard]] double decay_factor(MatrixDecay decay, double lr, double weight_decay);

}  // namespace sherd
