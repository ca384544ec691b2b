#include <sherd/torch/sync_batch_norm.h>

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <sherd/torch/convert.h>
#include <sherd/torch/detail/torch_device.h>

namespace sherd::torch {
namespace {

namespace autograd = ::torch::autograd;

struct SharingRanks final : ::torch::CustomClassHolder {
  explicit SharingRanks(std::shared_ptr<Communicator> of) : ranks(std::move(of)) {}
  const std::shared_ptr<Communicator> ranks;
};

constexpr const char* kRanks = "ranks";

// Sum over ranks, on each of them; its gradient is the sum of theirs.
struct SherdSumOverRanks : autograd::Function<SherdSumOverRanks> {
  static at::Tensor forward(autograd::AutogradContext* context, const c10::intrusive_ptr<SharingRanks>& of,
                            const at::Tensor& local) {
    context->saved_data[kRanks] = c10::IValue::make_capsule(of);
    Communicator& ranks = *of->ranks;
    Stream& compute = ranks.device().compute();
    const at::Tensor sum = local.contiguous().clone();
    const Serving serving(ranks, Purpose("sherd::torch::SyncBatchNorm"));
    ranks.all_reduce(compute, from_torch(sum, ranks.device()));
    compute.synchronize();
    return sum;
  }
  static autograd::variable_list backward(autograd::AutogradContext* context,
                                          const autograd::variable_list& gradients) {
    const auto of =
        c10::static_intrusive_pointer_cast<SharingRanks>(context->saved_data.at(kRanks).toCapsule());
    return {at::Tensor(), apply(of, gradients[0])};
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const ::torch::nn::BatchNormOptions& of) : NormImplBase(of) {}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  if (input.dim() >= 2 && input.size(1) == options.num_features()) return;
  throw InvalidArgument(fmt::format(
      "sherd::torch::SyncBatchNorm: an input of shape {}, and {} channels; channels are dimension 1",
      c10::str(input.sizes()), options.num_features()));
}

at::Tensor SyncBatchNormImpl::sum_over_ranks(const at::Tensor& local) const {
  if (!ranks_ || ranks_->size() == 1) return local;
  return SherdSumOverRanks::apply(c10::make_intrusive<SharingRanks>(ranks_), local);
}

// As in torch::nn::BatchNorm, the variance is unbiased here and biased in the normalization.
void SyncBatchNormImpl::track(const at::Tensor& mean, const at::Tensor& variance, double count) {
  const at::NoGradGuard no_grad;
  num_batches_tracked.add_(1);
  const double part = options.momentum() ? *options.momentum()
                                         : 1.0 / static_cast<double>(num_batches_tracked.item<int64_t>());
  running_mean.mul_(1 - part).add_(mean.to(running_mean.scalar_type()), part);
  running_var.mul_(1 - part).add_((variance * (count / (count - 1))).to(running_var.scalar_type()), part);
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  _check_input_dim(input);
  const at::Tensor x = input.scalar_type() == at::kDouble ? input : input.to(at::kFloat);
  std::vector<int64_t> shape(static_cast<size_t>(x.dim()), 1), others;
  shape[1] = options.num_features();
  for (int64_t d = 0; d < x.dim(); ++d)
    if (d != 1) others.push_back(d);
  at::Tensor mean = running_mean, variance = running_var;
  if (is_training() || !options.track_running_stats()) {
    const int64_t here = x.numel() / options.num_features();
    const at::Tensor number = at::full({1}, static_cast<double>(here), x.options().dtype(at::kDouble));
    const at::Tensor totals = sum_over_ranks(at::cat({x.sum(others, false, at::kDouble), number}));
    const double count = totals[-1].item<double>();
    if (count <= 1)
      throw InvalidArgument(fmt::format(
          "sherd::torch::SyncBatchNorm: {} values for each channel on all ranks together; training "
          "needs two or more",
          count));
    mean = totals.slice(0, 0, -1) / count;
    const at::Tensor difference = x - mean.to(x.scalar_type()).view(shape);
    variance = sum_over_ranks(difference.square().sum(others, false, at::kDouble)) / count;
    if (is_training() && options.track_running_stats()) track(mean, variance, count);
  }
  const at::Tensor inverse = (variance.to(at::kDouble) + options.eps()).rsqrt().to(x.scalar_type());
  at::Tensor y = (x - mean.to(x.scalar_type()).view(shape)) * inverse.view(shape);
  if (options.affine()) y = y * weight.view(shape) + bias.view(shape);
  return y.to(input.scalar_type());
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "sherd::torch::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", ranks=" << (ranks_ ? ranks_->size() : 1) << ")";
}

int share_batches(::torch::nn::Module& module, const DeviceMesh& mesh) {
  std::vector<SyncBatchNormImpl*> found;
  for (const auto& m : module.modules(/*include_self=*/false))
    if (auto* const norm = dynamic_cast<SyncBatchNormImpl*>(m.get())) found.push_back(norm);
  if (auto* const norm = dynamic_cast<SyncBatchNormImpl*>(&module)) found.push_back(norm);
  if (found.empty())
    throw InvalidArgument(
        "sherd::torch::share_batches: no SyncBatchNorm below the module; a program's modules have it in the "
        "place of torch::nn::BatchNorm1d, 2d or 3d");
  const std::shared_ptr<Communicator> ranks = mesh.world()->clone();
  for (SyncBatchNormImpl* const norm : found) norm->share(ranks);
  return static_cast<int>(found.size());
}

}  // namespace sherd::torch
