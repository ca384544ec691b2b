#include <sherd/optim/qk_clip.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include <sherd/comm/core/require_equal.h>
#include <sherd/kernels/ops.h>
#include <sherd/kernels/qk_clip/qk_clip.h>
#include <sherd/kernels/random/random.h>
#include <sherd/optim/detail/rest_segments.h>

namespace sherd {
namespace {

std::vector<ProjectedHeads> projections(const AttentionHeads& a) {
  std::vector<ProjectedHeads> all = a.queries;
  all.insert(all.end(), a.keys.begin(), a.keys.end());
  all.insert(all.end(), a.alone.begin(), a.alone.end());
  return all;
}

using Pieces = std::map<Master, std::vector<HeadScaleSegment>>;

// Adds the elements of each head that this rank holds. Layouts may cut inside of a head, which is then on
// several ranks. `again` is for elements that are scaled twice in a step, and rounded twice by different noise.
void add_pieces(Pieces& pieces, const AttentionHeads& a, const ProjectedHeads& p, const Tensor& factors,
                const std::vector<StateCounter>& counters, bool again = false) {
  if (p.param.frozen()) return;
  const Master master = p.param.group().plan().master;
  const RestPiece shard(p.param.shard()), low(p.param.shard_low());
  const auto counter =
      std::find_if(counters.begin(), counters.end(), [&](auto& c) { return c.param == p.param; });
  const ParamRange range = p.param.shard_range();
  const int64_t columns = p.param.shape().size() == 2 ? p.param.shape()[1] : 1;
  for (int64_t h = 0; h < factors.numel(); ++h) {
    const auto [first_row, last_row] = a.rows(p, h);
    const int64_t first = first_row * columns, last = last_row * columns;
    const int64_t begin = std::max(first, range.begin.value), end = std::min(last, range.end.value);
    if (begin >= end) continue;
    for (NoiseRun& run : rest_runs(p.param, {master, DType::f32}, begin - range.begin.value, end - begin,
                                   counter != counters.end() ? counter->value : Tensor())) {
      run.noise.key = hash64(run.noise.key, again ? "qk_clip, keys" : "qk_clip");  // not the update's
      pieces[master].push_back({shard.at(run.begin), run.count, factors.data<float>() + h,
                                static_cast<uint16_t*>(low.at(run.begin)), run.noise});
    }
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
      wrong.push_back(fmt::format(
          "rows [{}, {}) of parameter '{}' make heads of attention '{}' and of '{}', and would be "
          "scaled for both: let one of the attentions that share a projection be clipped, or none",
          r.begin, std::min(widest->end, r.end), r.parameter, widest->attention, r.attention));
    if (widest == nullptr || r.end > widest->end) widest = &r;
  }
}

// The mesh dimension that cuts these parameters ("" for none). Adds to `wrong` where they differ in it: a head's rows
// would be scaled on some ranks and not on others that hold them.
std::string cut_of(const std::string& attention, const std::vector<ProjectedHeads>& list,
                   std::vector<std::string>& wrong) {
  const auto cut = [](const Parameter& p) {
    const auto& t = p.tensor_shard();
    return t && t->parts > 1 ? t->mesh_dim : "";
  };
  const std::string dim = cut(list.front().param);
  for (const ProjectedHeads& p : list)
    if (cut(p.param) != dim)
      wrong.push_back(fmt::format(
          "attention '{}': parameter '{}' is {}, and '{}' is {}; cut all parameters of its queries "
          "alike, and all of its keys",
          attention, list.front().param.name(), dim.empty() ? "whole" : "cut over " + dim, p.param.name(),
          cut(p.param).empty() ? "whole" : "cut over " + cut(p.param)));
  return dim;
}

}  // namespace

QkClip::QkClip(ModuleBase& root, std::vector<std::shared_ptr<LogitMaxima>> layers,
               const QkClipOptions& options)
    : runtime_(runtime_of(root)), tau_(options.tau) {
  std::vector<std::string> wrong;
  if (!(tau_ > 0 && std::isfinite(tau_)))
    wrong.push_back(fmt::format("tau {} must be positive and finite", tau_));
  if (layers.empty()) wrong.push_back("the list of layers is empty");
  const std::vector<ParamGroup*> groups = runtime_.groups();
  int64_t heads = 0;
  std::vector<HeadRows> rows;
  std::string text = fmt::format("{}", tau_);
  std::vector<std::string>
      shares;  // by layer, the dimension whose ranks hold its key heads whole; "" for none
  for (auto& layer : layers) {
    const AttentionHeads& a = layer->heads();
    heads += a.heads;
    const std::string queries = cut_of(a.name, a.queries, wrong), keys = cut_of(a.name, a.keys, wrong);
    shares.push_back(keys.empty() ? queries : "");
    if (shares.back().empty() && !a.key_of.empty())
      wrong.push_back(fmt::format(
          "attention '{}' gives key_of, but its key heads are not whole on several ranks; leave it out",
          a.name));
    if (!keys.empty() && keys != queries)
      wrong.push_back(fmt::format(
          "attention '{}': its keys are cut over {}, and its queries are not, so that ranks would "
          "scale the same queries by other factors; cut the queries, too",
          a.name, keys));
    // The shared key heads that its queries use differ between ranks, and are left out.
    text += fmt::format("; {} {} {} {}", a.name, a.heads, shares.back().empty() ? a.kv_heads : 0, a.head_dim);
    for (const ProjectedHeads& p : projections(a)) {
      // The rows of shared key heads differ between ranks and stay out of the comparison.
      text += fmt::format(" {}+{}", p.param.name(), shares.back().empty() ? p.first_row : 0);
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
      for (const ProjectedHeads& p : list) {
        if (!p.param.sharded()) continue;
        const auto add = [&](int64_t begin, int64_t end) {
          rows.push_back({&p.param.group(), p.param.index_in_group(), begin, end, a.name, p.param.name()});
        };
        if (p.stride == 0) add(p.first_row, a.rows(p, count - 1).second);
        for (int h = 0; p.stride > 0 && h < count; ++h) add(a.rows(p, h).first, a.rows(p, h).second);
      }
    };
    add_rows(a.queries, a.heads);
    add_rows(a.keys, a.kv_heads);
    add_rows(a.alone, a.heads);
  }
  check_rows_apart(std::move(rows), wrong);
  if (!wrong.empty())
    throw InvalidArgument(fmt::format("{}: QkClip: {}", runtime_.device().label(), fmt::join(wrong, "; ")));
  // Before the communicators below, whose creation is collective.
  runtime_.require_equal(hash64(0, text),
                         "QkClip: the ranks were given different attentions, or another tau");
  // Maxima are reduced over the ranks that see different data: those over which gradients are averaged.
  std::vector<std::string> dims;
  const FullyShardOptions& o = runtime_.options();
  for (auto& d : runtime_.mesh().dims())
    if (o.averages_over(d.name)) dims.push_back(d.name);
  // Collective at the first request.
  data_ranks_ = runtime_.mesh().flatten(dims);

  Device& device = runtime_.device();
  const auto make = [&](int64_t n) {
    return Tensor::empty(device, {n}, DType::f32, MemoryClass::optimizer, "logit maxima");
  };
  packed_ = make(heads);
  int64_t at = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const AttentionHeads& a = layers[i]->heads();
    const Tensor own = packed_.flat(at, at + a.heads);
    layers_.push_back({layers[i], own, own, make(a.heads), make(a.kv_heads), 0, a.keys});
    at += a.heads;
    // Allocates the maxima now: attention kernels write them from the next forward on.
    layers[i]->values(device);
    if (!shares[i].empty()) share_keys(layers_.back(), shares[i], wrong);
  }
  if (!wrong.empty())
    throw InvalidArgument(fmt::format("{}: QkClip: {}", device.label(), fmt::join(wrong, "; ")));
  if (tensor_ranks_ == nullptr) return;
  gathered_ = make(heads * tensor_ranks_->size());
}

// Checks that the key heads, which every rank of the tensor-parallel group holds whole, are used in order
// and evenly by the queries of all its ranks, and prepares buffers for these. Collective over the group.
void QkClip::share_keys(Layer& l, const std::string& mesh_dim, std::vector<std::string>& wrong) {
  const AttentionHeads& a = l.maxima->heads();
  const std::shared_ptr<Communicator> ranks = a.queries.front().param.group().mesh().comm(mesh_dim);
  // Per parameter of the keys, the first row that each rank uses; then the number of its key heads, and the
  // key head of each query head.
  std::vector<uint64_t> mine;
  for (const ProjectedHeads& p : a.keys) mine.push_back(static_cast<uint64_t>(p.first_row));
  mine.push_back(static_cast<uint64_t>(a.kv_heads));
  for (int h = 0; h < a.heads; ++h) mine.push_back(static_cast<uint64_t>(a.key_head(h)));
  Device& device = runtime_.device();
  const std::vector<uint64_t> every = gather_values(*ranks, device.compute(), mine);
  const auto of = [&](int rank, size_t i) {
    return static_cast<int64_t>(every[static_cast<size_t>(rank) * mine.size() + i]);
  };
  const int last = ranks->size() - 1;
  // The heads used by the last rank end the list of all key heads. Every rank computes from the same gathered
  // values, so all of them accept or refuse. A dry device has this rank's values alone: it takes the largest size.
  const int64_t first = of(0, 0), heads = int64_t{a.heads} * ranks->size(),
                kv_heads =
                    device.dry() ? heads : (of(last, 0) - first) / a.head_dim + of(last, a.keys.size());
  const int64_t group = kv_heads < 1 ? 0 : heads / kv_heads;
  bool fits = tensor_ranks_ == nullptr || tensor_ranks_ == ranks;
  fits = fits && group > 0 && heads % kv_heads == 0;
  // Grouped-query attention: query head q uses key head q / group. Each rank's first row and head count must
  // agree with that.
  for (int rank = 0; fits && !device.dry() && rank <= last; ++rank) {
    const int64_t begin = rank * int64_t{a.heads} / group,
                  end = ((rank + 1) * int64_t{a.heads} - 1) / group + 1;
    fits = of(rank, a.keys.size()) == end - begin;
    for (int h = 0; fits && h < a.heads; ++h)
      fits = (rank * int64_t{a.heads} + h) / group - begin ==
             of(rank, a.keys.size() + 1 + static_cast<size_t>(h));
    for (size_t i = 0; i < a.keys.size(); ++i) fits = fits && of(rank, i) == of(0, i) + begin * a.head_dim;
  }
  if (!fits) {
    wrong.push_back(fmt::format(
        "attention '{}': its key heads are whole on all ranks along '{}', whose query heads do not "
        "share them in order and evenly; give every rank the key heads that its queries use, and key_of",
        a.name, mesh_dim));
    return;
  }
  tensor_ranks_ = ranks;
  const auto make = [&](int64_t n) {
    return Tensor::empty(device, {n}, DType::f32, MemoryClass::optimizer, "logit maxima");
  };
  l.all = make(heads);
  l.query = make(heads);
  l.key = make(kv_heads);
  l.first_query = ranks->rank() * int64_t{a.heads};
  // Factors of key heads count from the first head of the whole group.
  for (size_t i = 0; i < l.keys.size(); ++i) l.keys[i].first_row = of(0, i);
}

// All ranks call it right after an update. Factors are computed from maxima of the whole group, so that every
// rank scales shared heads by the same factor.
void QkClip::apply(Stream& compute, const Tensor& skip) {
  for (const Layer& l : layers_) ops::copy(compute, l.own, l.maxima->values(runtime_.device()));
  // All layers in one message, also in a step that `skip` drops: collectives are the same in every step.
  if (data_ranks_->size() > 1) data_ranks_->all_reduce(compute, packed_, ReduceOp::max);
  if (tensor_ranks_ != nullptr) tensor_ranks_->all_gather(compute, gathered_, packed_);
  Pieces pieces, alone;
  int64_t at = 0;  // of the layer's query heads in packed_
  for (const Layer& l : layers_) {
    const AttentionHeads& a = l.maxima->heads();
    // gathered_ is ordered by rank and then by layer; a layer's heads of all ranks are collected here.
    for (int64_t h = 0; l.all.numel() > a.heads && h < l.all.numel(); h += a.heads) {
      const int64_t from = h / a.heads * packed_.numel() + at;
      ops::copy(compute, l.all.flat(h, h + a.heads), gathered_.flat(from, from + a.heads));
    }
    at += a.heads;
    ops::qk_clip_factors(compute, l.query, l.key, l.all, tau_, skip);
    const Tensor queries = l.query.flat(l.first_query, l.first_query + a.heads);
    for (const ProjectedHeads& p : a.queries) add_pieces(pieces, a, p, queries, counters_);
    for (const ProjectedHeads& p : l.keys) add_pieces(pieces, a, p, l.key, counters_);
    for (const ProjectedHeads& p : a.alone) {
      add_pieces(pieces, a, p, queries, counters_);
      add_pieces(alone, a, p, l.key, counters_, true);
    }
    // The next step's forwards start from zero.
    l.maxima->reset();
  }
  // One kernel for all layers and each form. After a skipped step all factors are 1, and the weights keep their bits.
  for (const Pieces* some : {&pieces, &alone})
    for (const auto& [form, segments] : *some) ops::scale_heads(compute, segments, form);
}

void QkClip::use_counters(const std::vector<StateCounter>& counters) {
  // AdamW's "step" or "updates": one of a parameter.
  for (const Parameter& p : changed())
    for (const StateCounter& c : counters)
      if (c.param == p) counters_.push_back(c);
}

std::vector<Parameter> QkClip::changed() const {
  std::vector<Parameter> all;
  for (const Layer& l : layers_)
    for (const ProjectedHeads& p : projections(l.maxima->heads())) all.push_back(p.param);
  return all;
}

}  // namespace sherd
