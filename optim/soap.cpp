#include <sherd/optim/soap.h>

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <utility>

namespace sherd {
namespace {

// Before anything collective: every rank of a job has such a device.
Device& with_soap_kernels(Device& device) {
  (void)device.kernels<SoapKernels>();
  return device;
}

}  // namespace

std::vector<std::string> problems_of(const SoapOptions& o) {
  std::vector<std::string> wrong = problems_of(o.whole);
  const SoapConstants& c = o.constants;
  for (const auto& [name, beta] :
       {std::pair("beta1", c.beta1), {"beta2", c.beta2}, {"shampoo_beta", c.shampoo_beta}})
    if (!(beta >= 0 && beta < 1)) wrong.push_back(fmt::format("{} {} must lie in [0, 1)", name, beta));
  if (!(c.eps > 0 && std::isfinite(c.eps)))
    wrong.push_back(fmt::format("eps {} must be finite and greater than 0", c.eps));
  if (o.max_dim < 0 || o.max_dim > kLargestSoapSide)
    wrong.push_back(fmt::format("max_dim {} must lie in [0, {}]", o.max_dim, kLargestSoapSide));
  return wrong;
}

std::string SoapRule::settings() const {
  const SoapConstants& c = o_.constants;
  return fmt::format("beta1 {} beta2 {} shampoo_beta {} eps {} max_dim {}", c.beta1, c.beta2, c.shampoo_beta,
                     c.eps, o_.max_dim);
}

double SoapRule::matrix_flops(int64_t rows, int64_t cols) const {
  return soap_flops(static_cast<double>(rows), static_cast<double>(cols), rows <= o_.max_dim,
                    cols <= o_.max_dim);
}

std::vector<MatrixStateSpec> SoapRule::state(int64_t rows, int64_t cols) const {
  std::vector<MatrixStateSpec> specs = {
      {"soap_exp_avg", {rows, cols}, true}, {"soap_exp_avg_sq", {rows, cols}, true}, {"soap_steps", {1}}};
  const auto add_side = [&](const std::string& name, int64_t n) {
    if (n > o_.max_dim) return;
    for (auto& spec : {MatrixStateSpec{name, {n, n}}, {name + "_basis", {n, n}}, {name + "_values", {n}}})
      specs.push_back(spec);
  };
  add_side("soap_left", rows);
  add_side("soap_right", cols);
  return specs;
}

void SoapRule::compute_with_state(Stream& compute, const Tensor& out, const Tensor& in, const Tensor& status,
                                  const std::vector<MatrixState>& states) {
  std::vector<SoapMatrix> matrices;
  matrices.reserve(states.size());
  for (const auto& [tensors, skip, key] : states) {
    size_t next = 0;
    const auto take = [&, &all = tensors] { return all[next++].data<float>(); };
    SoapMatrix m;
    m.skip = skip.defined() ? skip.data<int64_t>() : nullptr;
    m.key = key;
    for (auto [f32, narrow] :
         {std::pair(&m.state.exp_avg, &m.exp_avg), {&m.state.exp_avg_sq, &m.exp_avg_sq}}) {
      const Tensor& t = tensors[next++];
      if (t.dtype() == DType::bf16)
        *narrow = t.data<bf16>();
      else
        *f32 = t.data<float>();
    }
    m.state.steps = take();
    if (in.size(1) <= o_.max_dim) {
      m.state.left = take();
      m.state.left_basis = take();
      m.state.left_values = take();
    }
    if (in.size(2) <= o_.max_dim) {
      m.state.right = take();
      m.state.right_basis = take();
      m.state.right_values = take();
    }
    matrices.push_back(m);
  }
  ops::soap_step(compute, out, in, status, matrices, o_.constants);
}

UpdateRuleFactory Soap::factory(const SoapOptions& o) {
  UpdateRuleFactory f = WholeMatrices::factory(
      kName, [o] { return std::make_shared<SoapRule>(o); }, o.whole);
  f.make = [o](Device& device, std::vector<UpdateItem> items) {
    return std::make_unique<Soap>(device, std::move(items), o);
  };
  return f;
}

Soap::Soap(Device& device, std::vector<UpdateItem> items, const SoapOptions& options)
    : WholeMatrices(with_soap_kernels(device), std::move(items), std::make_shared<SoapRule>(options),
                    options.whole) {}

}  // namespace sherd
