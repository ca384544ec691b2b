#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <sherd/fsdp/name_pattern.h>
#include <sherd/nn/kernels/experts/experts.h>
#include <sherd/nn/models/causal_model.h>
#include <sherd/nn/models/detail/decoder.h>
#include <sherd/nn/models/detail/key_heads.h>

namespace sherd::nn {
namespace {

class Problems {
 public:
  void unless(bool holds, std::string what) {
    if (!holds) all_.push_back(std::move(what));
  }
  const std::vector<std::string>& all() const { return all_; }

 private:
  std::vector<std::string> all_;
};

bool divides(int64_t part, int64_t whole) { return part > 0 && whole % part == 0; }

void check_sizes(const ModelDescription& m, Problems& p) {
  const bool dense = m.mixture.experts <= 0;
  for (const auto& [name, value] : {std::pair{"vocab", m.vocab},
                                    {"dim", m.dim},
                                    {"layers", m.layers},
                                    {"heads", m.heads},
                                    {"kv_heads", m.kv_heads},
                                    {"head_dim", m.head_dim},
                                    {"positions", m.positions},
                                    {"hidden", dense || m.mixture.dense_layers > 0 ? m.hidden : 1}})
    p.unless(value > 0, fmt::format("{} {} must be positive", name, value));
  p.unless(m.vocab <= INT32_MAX, fmt::format("vocab {} does not fit tokens of 32 bits", m.vocab));
  p.unless(m.heads <= 0 || m.kv_heads <= 0 || divides(m.kv_heads, m.heads),
           fmt::format("kv_heads {} must divide heads {}", m.kv_heads, m.heads));
  p.unless(m.norm_eps > 0, fmt::format("norm_eps {} must be positive", m.norm_eps));
  p.unless(m.mixture.experts >= 0, fmt::format("{} experts must not be negative", m.mixture.experts));
  p.unless(m.init_std >= 0, fmt::format("init_std {} must not be negative", m.init_std));
}

void check_latent(const ModelDescription& m, Problems& p) {
  const LatentDescription& l = m.latent;
  if (!is_deepseek(m)) {
    p.unless(l == LatentDescription{},
             fmt::format("latent attention, which {} has not", to_string(m.family)));
    return;
  }
  p.unless(l.kv_rank > 0 && l.q_rank >= 0 && l.nope >= 0 && l.rope > 0 && l.rope % 2 == 0 && l.value > 0,
           fmt::format("latent attention of kv_rank {}, q_rank {}, nope {}, rope {}, value {}: kv_rank, rope "
                       "and value must be positive, rope even",
                       l.kv_rank, l.q_rank, l.nope, l.rope, l.value));
  p.unless(m.head_dim == l.nope + l.rope,
           fmt::format("head_dim {} must be nope + rope, {}", m.head_dim, l.nope + l.rope));
  p.unless(m.kv_heads == m.heads, fmt::format("{} kv_heads; must be the {} heads", m.kv_heads, m.heads));
  p.unless(!m.qk_norm, fmt::format("{} has no qk_norm", to_string(m.family)));
}

void check_rope(const ModelDescription& m, const RopeDescription& rope, Problems& p) {
  const bool theta = rope.theta > 0 && std::isfinite(rope.theta);
  p.unless(theta, fmt::format("rope theta {} must be positive and finite", rope.theta));
  if (!theta) return;
  const std::string problem = ops::rope_problem(m.rotated(rope), rope.theta, rope.scaling);
  p.unless(problem.empty(), problem);
}

void check_windows(const ModelDescription& m, Problems& p) {
  const auto blocks = static_cast<int64_t>(m.windowed.size());
  const bool any = std::find(m.windowed.begin(), m.windowed.end(), true) != m.windowed.end();
  p.unless(!is_deepseek(m) || (!any && !m.window_rope), "windows of latent attention, which has none");
  p.unless(blocks == 0 || blocks == m.layers,
           fmt::format("windows of {} blocks; the model has {}", blocks, m.layers));
  p.unless(!any || m.window > 0, fmt::format("a window of {} positions must be positive", m.window));
}

void check_groups(const ModelDescription& m, Problems& p) {
  const MixtureDescription& x = m.mixture;
  p.unless(m.mtp_layers == 0 || (m.mtp_layers == 1 && routes_in_groups(m)),
           fmt::format("{} heads for multi-token prediction; {} may have {}", m.mtp_layers,
                       to_string(m.family), routes_in_groups(m) ? "0 or 1" : "none"));
  if (!routes_in_groups(m)) {
    p.unless(x.dense_layers == 0 && x.shared == 0 && x.groups == 1 && x.scaling == 1 && x.bias_speed == 0,
             fmt::format(
                 "dense layers, shared experts, groups, scaled gates or a selection bias, which {} has not",
                 to_string(m.family)));
    return;
  }
  p.unless(x.dense_layers >= 0 && x.dense_layers < m.layers,
           fmt::format("{} dense layers of {}; at least one must have experts", x.dense_layers, m.layers));
  p.unless(x.shared >= 0, fmt::format("{} shared experts must not be negative", x.shared));
  const int64_t size = divides(x.groups, x.experts) ? x.experts / x.groups : 0;
  p.unless(size > 0 && (x.groups == 1 || size > 1),
           fmt::format("{} groups must divide {} experts, with two of them or more", x.groups, x.experts));
  p.unless(x.top_groups >= 1 && x.top_groups <= x.groups && x.top_groups * size >= x.top_k,
           fmt::format("{} of {} groups must hold the {} experts of a row", x.top_groups, x.groups, x.top_k));
  p.unless(x.scaling > 0 && std::isfinite(x.scaling),
           fmt::format("gates times {} must be positive", x.scaling));
  p.unless(x.bias_speed >= 0 && std::isfinite(x.bias_speed),
           fmt::format("the selection bias's speed {} must be finite and not negative", x.bias_speed));
}

void check_family(const ModelDescription& m, Problems& p) {
  const std::string_view family = to_string(m.family);
  const bool experts = m.family == ModelFamily::qwen3_moe || m.family == ModelFamily::mixtral ||
                       routes_in_groups(m) || is_gpt_oss(m);
  p.unless((m.mixture.experts > 0) == experts || is_byte_gpt(m),
           fmt::format("{} experts, but {} is a family {} them", m.mixture.experts, family,
                       experts ? "with" : "without"));
  if (is_gpt(m)) {
    const bool biases = !is_byte_gpt(m);
    p.unless(m.qkv_bias == biases && m.out_bias == biases && m.mlp_bias == biases && !m.qk_norm,
             fmt::format("{} has biases {} and no qk_norm", family, biases ? "everywhere" : "nowhere"));
    p.unless(m.kv_heads == m.heads,
             fmt::format("{} has as many kv_heads ({}) as heads ({})", family, m.kv_heads, m.heads));
    p.unless(biases || !m.tied, "byte_gpt has a head of its own, not tied to the table");
  } else {
    const int64_t rotated = m.rope.columns > 0 ? m.rope.columns : m.head_dim;
    p.unless(
        (rotated % 2 == 0 && m.rope.columns >= 0 && rotated <= m.head_dim) || is_deepseek(m),
        fmt::format("head_dim {} must be even for rotary positions, or the {} columns of it that are rotated",
                    m.head_dim, m.rope.columns));
    p.unless(m.rope.columns == 0 || m.family == ModelFamily::glm4_moe,
             fmt::format("{} rotated columns of a head; {} rotates all", m.rope.columns, family));
    check_rope(m, m.rope, p);
    if (m.window_rope) check_rope(m, *m.window_rope, p);
  }
  p.unless(!(is_olmo(m) || is_gemma(m)) || (m.qk_norm && !m.mlp_bias),
           fmt::format("{} has qk_norm and no mlp_bias", family));
  p.unless(m.query_scalar == 0 || is_gemma(m), fmt::format("a query_scalar, which {} has not", family));
  p.unless(m.query_scalar >= 0 && std::isfinite(m.query_scalar),
           fmt::format("query_scalar {} must not be negative", m.query_scalar));
  p.unless(!is_gpt_oss(m) || (m.mixture.normalise && !m.qk_norm),
           "gpt_oss has normalised gates and no qk_norm");
  check_latent(m, p);
  check_windows(m, p);
  check_groups(m, p);
  if (m.mixture.experts <= 0) return;
  p.unless(!m.mlp_bias, "experts have no biases (mlp_bias)");
  p.unless(m.mixture.hidden > 0, fmt::format("the experts' hidden {} must be positive", m.mixture.hidden));
  p.unless(m.mixture.balance >= 0 && std::isfinite(m.mixture.balance),
           fmt::format("the balancing loss's share {} must be finite and not negative", m.mixture.balance));
  p.unless(m.mixture.top_k >= 1 && m.mixture.top_k <= std::min(m.mixture.experts, ops::kMostExpertsOfARow),
           fmt::format("top_k {} must be between 1 and the {} experts, and at most {}", m.mixture.top_k,
                       m.mixture.experts, ops::kMostExpertsOfARow));
}

void check_ranks(const ModelDescription& m, const CausalModelOptions& o, Problems& p) {
  const int tp = o.tp.size();
  p.unless(!is_byte_gpt(m) || !o.sequence_parallel, "byte_gpt has no sequence parallelism");
  p.unless(m.heads % tp == 0, fmt::format("{} tensor-parallel ranks do not divide {} heads", tp, m.heads));
  const int context = o.context.size();
  if (context > 1 && m.heads % tp == 0 && divides(m.kv_heads, m.heads)) {
    // Of every tensor-parallel rank, so that all of them refuse.
    const int64_t heads = m.heads / tp;
    for (int64_t rank = 0, keys = m.kv_heads / tp; rank < tp; ++rank) {
      if (m.kv_heads % tp != 0)
        keys = std::ssize(detail::key_heads(rank * heads, heads, m.heads, m.kv_heads));
      if (heads % context == 0 && keys % context == 0) continue;
      p.unless(false, fmt::format("{} context-parallel ranks do not divide the {} heads and {} key heads of "
                                  "tensor-parallel rank {}",
                                  context, heads, keys, rank));
      break;
    }
  }
  if (m.mixture.experts <= 0 || m.mixture.dense_layers > 0)
    p.unless(m.hidden % tp == 0,
             fmt::format("{} tensor-parallel ranks do not divide hidden {}", tp, m.hidden));
  p.unless(m.mixture.shared * m.mixture.hidden % tp == 0,
           fmt::format("{} tensor-parallel ranks do not divide the shared experts' {} columns", tp,
                       m.mixture.shared * m.mixture.hidden));
  p.unless(m.mtp_layers == 0 || 2 * m.dim % tp == 0,
           fmt::format("{} tensor-parallel ranks do not divide the {} columns of eh_proj", tp, 2 * m.dim));
  p.unless(m.mixture.experts <= 0 || divides(o.ep.parts, m.mixture.experts),
           fmt::format("{} parts do not divide {} experts", o.ep.parts, m.mixture.experts));
  p.unless(o.ep.parts == 1 || o.ep.comm, "experts in several parts need a communicator");
  p.unless(!o.ep.comm || o.ep.comm->size() == o.ep.parts,
           fmt::format("{} parts of experts over a communicator of {} ranks", o.ep.parts,
                       o.ep.comm ? o.ep.comm->size() : 1));
  p.unless(o.ep.index >= 0 && o.ep.index < o.ep.parts,
           fmt::format("part {} of {} parts of experts", o.ep.index, o.ep.parts));
  // Each tensor-parallel rank gives its experts a part of the rows, so that their gradients are owed a sum
  // over these ranks, too, which a mesh that knows of them forms.
  p.unless(m.mixture.experts <= 0 || tp == 1 || o.ep.all,
           "experts beside tensor parallelism need a mesh of their own, also in one part: ep = "
           "ExpertParallel::of(mesh with dimensions \"expert_shard\" and \"expert\")");
  p.unless(o.logits_chunk >= 0, fmt::format("logits_chunk {} must not be negative", o.logits_chunk));
}

void check_lora(const ModelDescription& m, const LoraOptions& o, Problems& p) {
  p.unless(o.rank >= 0, fmt::format("adapters of rank {} must not be negative", o.rank));
  if (o.rank <= 0) return;
  p.unless(!is_gpt(m),
           "gpt2 and byte_gpt have no adapters; their weights are [in, out], or q, k and v fused");
  p.unless(m.mtp_layers == 0, "adapters beside a head for multi-token prediction, which would be frozen");
  p.unless(o.alpha > 0 && std::isfinite(o.alpha),
           fmt::format("the adapters' alpha {} must be positive", o.alpha));
  try {
    (void)NamePattern(o.targets);
  } catch (const InvalidArgument& e) {
    p.unless(false, fmt::format("the adapters' targets {}", e.what()));
  }
}

}  // namespace

Var CausalModel::forward(const Var&, const OfLogits&, const HiddenRows&) {
  throw NotSupported("this model computes its own objective alone");
}

Var CausalModel::forward(const Var&, const HiddenRows&) {
  throw NotSupported("this model computes its own objective alone");
}

Tensor CausalModel::forward(const HeadOf&) {
  throw NotSupported("this model computes its own objective alone");
}

Tensor CausalModel::forward(const Tensor&, const std::vector<KvCache*>&) {
  throw NotSupported("this model keeps no keys and values: run the whole text for each token");
}

const ModelDescription& CausalModel::description() const {
  throw NotSupported("this model is of no published family: it has no description");
}

KvCache CausalModel::make_cache(Device&, int64_t, DType) const {
  throw NotSupported("this model keeps no keys and values: run the whole text for each token");
}

std::unique_ptr<CausalModel> causal_model(const ModelDescription& description,
                                          const CausalModelOptions& options) {
  Problems problems;
  check_sizes(description, problems);
  check_family(description, problems);
  check_ranks(description, options, problems);
  check_lora(description, options.lora, problems);
  if (!problems.all().empty())
    throw InvalidArgument(
        fmt::format("causal_model: {}: {}", to_string(description.family), fmt::join(problems.all(), "; ")));
  return std::make_unique<detail::Decoder>(description, options);
}

}  // namespace sherd::nn
