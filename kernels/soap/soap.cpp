#include <sherd/kernels/soap/soap.h>

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include <sherd/kernels/device/detail/door.h>

namespace sherd {
namespace {

bool complete(const SoapMatrix& m) {
  const SoapState& s = m.state;
  const auto one_side = [](const float* factor, const float* basis, const float* values) {
    return (factor != nullptr) == (basis != nullptr) && (factor != nullptr) == (values != nullptr);
  };
  const bool moments = m.exp_avg ? m.exp_avg_sq && !s.exp_avg && !s.exp_avg_sq : s.exp_avg && s.exp_avg_sq;
  return moments && s.steps && one_side(s.left, s.left_basis, s.left_values) &&
         one_side(s.right, s.right_basis, s.right_values);
}

}  // namespace

double soap_flops(double rows, double cols, bool left, bool right) {
  const double products = rows * cols * ((left ? 12 * rows : 0) + (right ? 12 * cols : 0));
  return products + 26.0 / 3 * ((left ? rows * rows * rows : 0) + (right ? cols * cols * cols : 0));
}

Work work_of(const Device& device, const SoapArgs& a) {
  Work work{.dtype = DType::f64};
  for (const SoapMatrix& m : a.matrices) {
    const bool left = m.state.left != nullptr, right = m.state.right != nullptr;
    work.flops += soap_flops(static_cast<double>(a.rows), static_cast<double>(a.cols), left, right);
    work.bytes += (m.exp_avg ? -8 : 0) * a.rows * a.cols;
    work.bytes +=
        4 * (6 * a.rows * a.cols + (left ? 4 * a.rows * a.rows : 0) + (right ? 4 * a.cols * a.cols : 0));
  }
  if (const auto scratch = device.kernels<SoapKernels>().soap_scratch) work.scratch = scratch(a);
  return work;
}

}  // namespace sherd

namespace sherd::ops {

using namespace door;

void soap_step(Stream& s, const Tensor& out, const Tensor& in, const Tensor& status,
               std::span<const SoapMatrix> matrices, const SoapConstants& c) {
  Check check("soap_step");
  check.dtype("in", in, DType::f32).dtype("out", out, DType::f32).dtype("status", status, DType::i32).done();
  check.dims("in", in, 3);
  check.shape("out", out, in.shape()).count("status", status, in.size(0));
  check.that(static_cast<int64_t>(matrices.size()) == in.size(0),
             fmt::format("{} matrices have {} states", in.size(0), matrices.size()));
  for (size_t i = 0; i < matrices.size(); ++i) {
    const SoapState& state = matrices[i].state;
    for (const auto& [side, size] : {std::pair(state.left, in.size(1)), {state.right, in.size(2)}})
      check.that(!side || size <= kLargestSoapSide,
                 fmt::format("matrix {}: a side of {} has a factor, the largest possible is {}", i, size,
                             kLargestSoapSide));
    check.that(complete(matrices[i]), fmt::format("matrix {}: a state tensor is null", i));
  }
  check.done();
  require_distinct("soap_step", out, in);
  for (const auto& [name, beta] :
       {std::pair("beta1", c.beta1), {"beta2", c.beta2}, {"shampoo_beta", c.shampoo_beta}})
    require(beta >= 0 && beta < 1, fmt::format("soap_step: {} {} must lie in [0, 1)", name, beta));
  require(c.eps > 0 && std::isfinite(c.eps),
          fmt::format("soap_step: eps {} must be finite and greater than 0", c.eps));
  // A matrix's second step loads kernels that its first does not use. Only the device knows a matrix's step, so all issue in order.
  const InOrder in_order(s.device(), s.device().kind() == DeviceKind::cuda);
  queue(s, {"soap_step", WorkKind::optimizer}, kernels<SoapKernels>(s).soap_step,
        SoapArgs{in.size(1),
                 in.size(2),
                 in.data<float>(),
                 out.data<float>(),
                 status.data<int32_t>(),
                 {matrices.begin(), matrices.end()},
                 c});
}

}  // namespace sherd::ops
