#include <sherd/optim/whole/momentum_options.h>

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace sherd {

std::vector<std::string> problems_of(const MomentumOptions& o) {
  std::vector<std::string> wrong;
  if (!(o.momentum >= 0 && o.momentum < 1))
    wrong.push_back(fmt::format("momentum {} must lie in [0, 1)", o.momentum));
  if (o.payload != DType::f32 && o.payload != DType::bf16 && o.payload != DType::f16)
    wrong.push_back(fmt::format("payload {} must be f32, bf16 or f16", name_of(o.payload)));
  if (o.transient_bytes < 0)
    wrong.push_back(
        fmt::format("transient_bytes {} must be at least 1, or 0 for the default", o.transient_bytes));
  for (const auto& [name, cost] : {std::pair("flops_per_second", o.costs.flops_per_second),
                                   std::pair("bytes_per_second", o.costs.bytes_per_second)})
    if (!(cost > 0 && std::isfinite(cost)))
      wrong.push_back(fmt::format("costs.{} {} must be finite and greater than 0", name, cost));
  if (!(o.state_weight >= 0 && o.state_weight <= 1))
    wrong.push_back(fmt::format("state_weight {} must lie in [0, 1]", o.state_weight));
  return wrong;
}

// transient_bytes changes no result. costs choose the plan, whose fingerprint is compared.
std::string to_string(const MomentumOptions& o) {
  return fmt::format("{} {} {} {} {} {} {}", o.momentum, o.nesterov, name_of(o.decay), name_of(o.payload),
                     name_of(o.mode), name_of(o.tensor), o.allow_inexact);
}

double decay_factor(MatrixDecay decay, double lr, double weight_decay) {
  switch (decay) {
    case MatrixDecay::decoupled:
      return 1 - lr * weight_decay;
    case MatrixDecay::independent:
      return 1 - weight_decay;
    case MatrixDecay::palm:
      return 1 - lr * lr * weight_decay;
    case MatrixDecay::l2:
      break;
  }
  return 1;
}

}  // namespace sherd
