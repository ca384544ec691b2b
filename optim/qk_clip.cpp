#include <sherd/optim/qk_clip.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>

#include <sherd/kernels/ops/ops.h>
#include <sherd/kernels/ops/qk_clip.h>
#include <sherd/kernels/ops/random.h>

namespace sherd {
namespace {

std::vector<ProjectedHeads> projections(const AttentionHeads& a) {
  std::vector<ProjectedHeads> all = a.queries;
  all.insert(all.end(), a.keys.begin(), a.keys.end());
  return all;
}

// The elements of each head that this rank holds.
void add_pieces(std::vector<HeadScaleSegment>& pieces, const ProjectedHeads& p, int head_dim,
                const Tensor& factors) {
  const Tensor shard = p.param.shard();
  const ParamRange range = p.param.shard_range();
  const int64_t columns = p.param.shape().size() == 2 ? p.param.shape()[1] : 1;
  for (int64_t h = 0; h < factors.numel(); ++h) {
    const int64_t first = (p.first_row + h * head_dim) * columns, last = first + head_dim * columns;
    const int64_t begin = std::max(first, range.begin.value), end = std::min(last, range.end.value);
    if (begin < end)
      pieces.push_back(
          {shard.data<float>() + (begin - range.begin.value), end - begin, factors.data<float>() + h});
  }
}

// Rows of a parameter that make heads of an attention.
struct HeadRows {
  const ParamGroup* group;
  int index;  // in the group
  int64_t begin, end;
  std::string attention, parameter;
};

// Rows that make heads twice would be scaled by both factors: a projection that two attentions share (tied),
// or query and key rows that overlap.
void check_rows_apart(std::vector<HeadRows> rows, std::vector<std::string>& wrong) {
  std::sort(rows.begin(), rows.end(), [](const HeadRows& a, const HeadRows& b) {
    return std::tie(a.group, a.index, a.begin) < std::tie(b.group, b.index, b.begin);
  });
  const HeadRows* widest = nullptr;  // of the same parameter's rows so far, what reaches farthest
  for (const HeadRows& r : rows) {
    if (widest != nullptr && (widest->group != r.group || widest->index != r.index)) widest = nullptr;
    if (widest != nullptr && r.begin < widest->end)
      wrong.push_back(
          fmt::format("rows [{}, {}) of parameter '{}' make heads of attention '{}' and of '{}', and would be "
                      "scaled for both: let one of the attentions that share a projection be clipped, or none",
                      r.begin, std::min(widest->end, r.end), r.parameter, widest->attention, r.attention));
    if (widest == nullptr || r.end > widest->end) widest = &r;
  }
}

}  // namespace

QkClip::QkClip(ModuleBase& root, std::vector<std::shared_ptr<LogitMaxima>> layers,
               const QkClipOptions& options)
    : runtime_(runtime_of(root)), tau_(options.tau) {
  std::vector<std::string> wrong;
  if (!(tau_ > 0 && std::isfinite(tau_)))
    wrong.push_back(fmt::format("tau {} must be positive and finite", tau_));
  if (layers.empty()) wrong.push_back("there are no layers");
  const std::vector<ParamGroup*> groups = runtime_.groups();
  int64_t heads = 0;
  std::vector<HeadRows> rows;
  std::string text = fmt::format("{}", tau_);
  for (auto& layer : layers) {
    const AttentionHeads& a = layer->heads();
    heads += a.heads;
    text += fmt::format("; {} {} {} {}", a.name, a.heads, a.kv_heads, a.head_dim);
    for (const ProjectedHeads& p : projections(a)) {
      text += fmt::format(" {}+{}", p.param.name(), p.first_row);
      const bool ours =
          p.param.sharded() && std::find(groups.begin(), groups.end(), &p.param.group()) != groups.end();
      if (!ours) {
        wrong.push_back(
            fmt::format("parameter '{}' of attention '{}' is not of this model", p.param.name(), a.name));
      } else if (!p.param.trainable()) {
        wrong.push_back(fmt::format("parameter '{}' of attention '{}' is frozen", p.param.name(), a.name));
      }
    }
    const auto add_rows = [&](const std::vector<ProjectedHeads>& list, int count) {
      for (const ProjectedHeads& p : list)
        if (p.param.sharded())
          rows.push_back({&p.param.group(), p.param.index_in_group(), p.first_row,
                          p.first_row + int64_t{count} * a.head_dim, a.name, p.param.name()});
    };
    add_rows(a.queries, a.heads);
    add_rows(a.keys, a.kv_heads);
  }
  check_rows_apart(std::move(rows), wrong);
  if (!wrong.empty())
    throw InvalidArgument(fmt::format("{}: QkClip: {}", runtime_.device().label(), fmt::join(wrong, "; ")));
  runtime_.require_equal(hash64(0, text),
                         "QkClip: the ranks were given different attentions, or another tau");
  std::vector<std::string> dims;
  const FullyShardOptions& o = runtime_.options();
  for (auto& d : runtime_.mesh().dims())
    if (d.name == o.shard_dim || d.name == o.replicate_dim) dims.push_back(d.name);
  data_ranks_ = runtime_.mesh().flatten(dims);

  Device& device = runtime_.device();
  const auto make = [&](int64_t n) {
    return Tensor::empty(device, {n}, DType::f32, MemoryClass::optimizer, "logit maxima");
  };
  packed_ = make(heads);
  int64_t at = 0;
  for (auto& layer : layers) {
    const AttentionHeads& a = layer->heads();
    layers_.push_back({layer, packed_.flat(at, at + a.heads), make(a.heads), make(a.kv_heads)});
    at += a.heads;
    layer->values(device);
  }
}

void QkClip::apply(Stream& compute, const Tensor& skip) {
  for (const Layer& l : layers_) ops::copy(compute, l.all, l.maxima->values(runtime_.device()));
  if (data_ranks_->size() > 1) data_ranks_->all_reduce(compute, packed_, ReduceOp::max);
  std::vector<HeadScaleSegment> pieces;
  for (const Layer& l : layers_) {
    const AttentionHeads& a = l.maxima->heads();
    ops::qk_clip_factors(compute, l.query, l.key, l.all, tau_, skip);
    for (const ProjectedHeads& p : a.queries) add_pieces(pieces, p, a.head_dim, l.query);
    for (const ProjectedHeads& p : a.keys) add_pieces(pieces, p, a.head_dim, l.key);
    l.maxima->reset();
  }
  ops::scale_heads(compute, pieces);
}

std::vector<Parameter> QkClip::changed() const {
  std::vector<Parameter> all;
  for (const Layer& l : layers_)
    for (const ProjectedHeads& p : projections(l.maxima->heads())) all.push_back(p.param);
  return all;
}

}  // namespace sherd
