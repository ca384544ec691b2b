#include <sherd/fsdp/logit_maxima.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include <sherd/kernels/ops.h>

namespace sherd {

// Rows of a fused projection: queries first, then keys.
AttentionHeads AttentionHeads::fused(std::string name, const Parameter& weight, const Parameter& bias,
                                     int heads, int kv_heads, int head_dim) {
  AttentionHeads all{.name = std::move(name), .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim};
  for (const Parameter& p : {weight, bias}) {
    if (!p.defined()) continue;
    all.queries.push_back({p, 0});
    all.keys.push_back({p, int64_t{heads} * head_dim});
  }
  return all;
}

std::vector<std::string> AttentionHeads::problems() const {
  std::vector<std::string> wrong;
  if (normalised)
    wrong.push_back(
        "queries or keys are normalised, so that scaling their weights does not change the logits");
  if (heads < 1 || kv_heads < 1 || head_dim < 1 || (key_of.empty() && heads % kv_heads != 0))
    wrong.push_back(fmt::format(
        "{} query heads, {} key heads of {} elements (the first must be a multiple of the second)", heads,
        kv_heads, head_dim));
  const auto known = [&](int key) { return key >= 0 && key < kv_heads; };
  if (!key_of.empty() && (std::ssize(key_of) != heads || !std::ranges::all_of(key_of, known)))
    wrong.push_back(
        fmt::format("key_of is [{}]: it must have one of the {} key heads for each of {} query heads",
                    fmt::join(key_of, ", "), kv_heads, heads));
  if (queries.empty() || keys.empty())
    wrong.push_back("no parameters of its queries or of its keys are given");
  const auto check = [&](const std::vector<ProjectedHeads>& list, int count) {
    for (const ProjectedHeads& p : list) {
      if (!p.param.defined()) {
        wrong.push_back("an undefined parameter");
        continue;
      }
      const Shape& shape = p.param.shape();
      const int64_t end = rows(p, count - 1).second;
      if (shape.empty() || shape.size() > 2 || p.first_row < 0 || end > shape[0])
        wrong.push_back(fmt::format("parameter '{}' of shape {} has no rows [{}, {})", p.param.name(),
                                    to_string(shape), p.first_row, end));
    }
  };
  if (!alone.empty() && kv_heads != heads)
    wrong.push_back(fmt::format(
        "{} key heads of {} query heads, of which some have keys that all share; let each have its own",
        kv_heads, heads));
  check(queries, heads);
  check(alone, heads);
  check(keys, kv_heads);
  return wrong;
}

LogitMaxima::LogitMaxima(AttentionHeads heads) : heads_(std::move(heads)) {
  if (const auto wrong = heads_.problems(); !wrong.empty())
    throw InvalidArgument(
        fmt::format("LogitMaxima of attention '{}': {}", heads_.name, fmt::join(wrong, "; ")));
}

// Allocated at first use, since the device is not known when the layer is made.
const Tensor& LogitMaxima::values(Device& device) {
  if (values_.defined()) return values_;
  values_ = Tensor::empty(device, {heads_.heads}, DType::f32, MemoryClass::scratch, "logit maxima");
  reset();
  return values_;
}

// 0 is the neutral value: QK-Clip compares maxima with a positive tau only.
void LogitMaxima::reset() {
  if (values_.defined()) ops::fill(values_.device().compute(), values_, 0);
}

}  // namespace sherd
