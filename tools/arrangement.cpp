#include "arrangement.h"

#include <algorithm>
#include <limits>
#include <map>

#include <fmt/format.h>

#include <sherd/dtensor/layer_wise.h>
#include <sherd/fsdp/layout_param.h>
#include <sherd/kernels/device/error.h>

namespace sherd::tools {
namespace {

constexpr int64_t kMaxMatrices = int64_t{1} << 20;

LayoutParam described(const ParamEntry& p) {
  const CutClass cut = p.optimizer == Algorithm::muon ? CutClass::row : CutClass::element;
  return layout_param(p.name, p.shape, cut, stacked_blocks(p.blocks));
}

class Builder {
 public:
  explicit Builder(Arrangement& a) : a_(a) { a_.places.resize(a_.model.size()); }

  void build() {
    const bool whole = a_.options.layout.policy == LayoutPolicy::whole_param;
    if (whole) layer_wise();
    unit_buffers(whole);
    check_total();
    plan();
  }

 private:
  /// Of each dtype among `params`, in order of first use.
  std::vector<std::pair<DType, std::vector<int>>> by_dtype(const std::vector<int>& params) const {
    std::vector<std::pair<DType, std::vector<int>>> groups;
    for (int i : params) {
      const DType t = a_.model[i].dtype;
      auto it = std::find_if(groups.begin(), groups.end(), [&](auto& g) { return g.first == t; });
      if (it == groups.end()) it = groups.insert(groups.end(), {t, {}});
      it->second.push_back(i);
    }
    return groups;
  }

  void add(Buffer& buffer, int64_t start, ShardLayout layout, std::vector<int> params) {
    for (size_t p = 0; p < params.size(); ++p)
      a_.places[params[p]] = {static_cast<int>(a_.buffers.size()), static_cast<int>(buffer.buckets.size()),
                              static_cast<int>(p)};
    buffer.elements += layout.buffer_elements();
    buffer.padding += layout.padding();
    buffer.buckets.push_back({start, std::move(layout), std::move(params)});
  }

  void layer_wise() {
    std::vector<int> muon;
    for (size_t i = 0; i < a_.model.size(); ++i)
      if (a_.model[i].optimizer == Algorithm::muon) muon.push_back(static_cast<int>(i));
    for (auto& [dtype, params] : by_dtype(muon)) {
      std::vector<LayerWiseParam> matrices;
      for (int i : params) matrices.push_back({described(a_.model[i]), a_.model[i].tied});
      auto layout = LayerWiseLayout::make(matrices, a_.options.world,
                                          {.packing = a_.options.layout.packing,
                                           .bucket_elements = a_.options.bucket_elements,
                                           .align = a_.options.align});
      Buffer buffer{fmt::format("whole_param/{}", name_of(dtype)), dtype, {}};
      for (LayerWiseBucket& b : layout.buckets) {
        const auto first = params.begin() + b.first_param;
        const auto count = static_cast<std::ptrdiff_t>(b.layout.params().size());
        add(buffer, b.begin.value, std::move(b.layout), {first, first + count});
      }
      a_.buffers.push_back(std::move(buffer));
    }
  }

  void unit_buffers(bool adamw_only) {
    std::vector<std::pair<std::string, std::vector<int>>> units;  // in order of first use
    std::map<std::string, size_t> index;
    for (size_t i = 0; i < a_.model.size(); ++i) {
      const auto [it, fresh] = index.try_emplace(a_.model[i].unit, units.size());
      if (fresh) units.emplace_back(a_.model[i].unit, std::vector<int>());
      if (!adamw_only || a_.model[i].optimizer == Algorithm::adamw)
        units[it->second].second.push_back(static_cast<int>(i));
    }
    LayoutOptions options;
    options.policy = adamw_only ? LayoutPolicy::ragged : a_.options.layout.policy;
    options.align = a_.options.align;
    int position = 0;
    for (auto& [unit, members] : units) {
      options.rotation = unit == "root" ? static_cast<int>(units.size()) - 1 : position++;
      for (auto& [dtype, params] : by_dtype(members)) {
        std::vector<LayoutParam> laid;
        for (int i : params) laid.push_back(described(a_.model[i]));
        Buffer buffer{fmt::format("{}/{}", unit, name_of(dtype)), dtype, {}};
        add(buffer, 0, ShardLayout::make(std::move(laid), a_.options.world, options), std::move(params));
        a_.buffers.push_back(std::move(buffer));
      }
    }
  }

  void check_total() const {  // each buffer fits by itself
    int64_t total = 0;
    for (const Buffer& b : a_.buffers)
      if (__builtin_add_overflow(total, b.elements, &total))
        throw InvalidArgument(
            fmt::format("{} buffers on {} ranks in slices that are a multiple of {} have more elements than "
                        "64 bits count; "
                        "use fewer ranks, a smaller align, or fewer units and dtypes",
                        a_.buffers.size(), a_.options.world, a_.options.align));
  }

  void plan() {
    a_.plan_options = plan_options(MuonOptions{});
    for (size_t i = 0; i < a_.model.size(); ++i) {
      const ParamEntry& p = a_.model[i];
      if (p.optimizer != Algorithm::muon) continue;
      const ParamPlace& at = a_.places[i];
      for (auto& m : logical_matrices(p.name, p.shape, stacked_blocks(p.blocks), {}, a_.bucket_of(at).layout,
                                      at.param)) {
        a_.matrices.push_back(std::move(m));
        a_.matrix_param.push_back(static_cast<int>(i));
      }
    }
    a_.plan = make_plan(a_.matrices, a_.options.world, 1, a_.plan_options);
  }

  Arrangement& a_;
};

}  // namespace

Arrangement Arrangement::make(std::vector<ParamEntry> model, const ArrangeOptions& options) {
  int64_t total = 0, matrices = 0;
  for (const ParamEntry& p : model) {
    total += numel_of(p.shape);
    if (p.optimizer != Algorithm::muon) continue;
    const auto blocks = std::max<int64_t>(1, static_cast<int64_t>(p.blocks.size()));
    const int64_t stack = p.shape.size() == 3 ? p.shape[0] : 1;
    if (stack > kMaxMatrices / blocks || (matrices += stack * blocks) > kMaxMatrices)
      throw InvalidArgument(
          fmt::format("up to '{}' of shape {} Muon has more than {} matrices to plan for: stacks "
                      "are [count, rows, cols], and smaller matrices belong to adamw",
                      p.name, to_string(p.shape), kMaxMatrices));
  }
  // Padding at most doubles a slice, and a slice has at most all elements.
  const int64_t most = std::numeric_limits<int64_t>::max() / 8 / options.world;
  if (total > most)
    throw InvalidArgument(fmt::format(
        "the model has {} elements; on {} ranks at most {} can be laid out in 64-bit arithmetic: use fewer "
        "ranks or describe a smaller model",
        total, options.world, most));
  Arrangement a;
  a.model = std::move(model);
  a.options = options;
  Builder(a).build();
  return a;
}

uint64_t Arrangement::fingerprint() const {
  uint64_t h = plan.fingerprint;
  for (const Buffer& buffer : buffers)
    for (const Bucket& b : buffer.buckets)
      h = (h ^ b.layout.fingerprint()) * 0x9e3779b97f4a7c15ull + (h >> 29);
  return h;
}

}  // namespace sherd::tools
