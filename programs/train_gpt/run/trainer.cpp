#include "train_gpt/run/trainer.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include <sherd/checkpoint/weights.h>
#include <sherd/kernels/ops.h>
#include <sherd/kernels/squares/exact_sum.h>
#include <sherd/nn/hf/adapter_folder.h>
#include <sherd/optim/normuon.h>
#include <sherd/optim/qk_clip.h>
#include <sherd/optim/soap.h>

#include "train_gpt/model/saved_model.h"
#include "train_gpt/model/trained_work.h"
#include "train_gpt/run/next_rows.h"
#include "train_gpt/run/windows.h"
#include "train_gpt/settings/misfit.h"
#include "train_gpt/settings/optimizer_config.h"
#include "train_gpt/settings/run_options.h"

namespace train_gpt {
namespace {

using namespace sherd;

static_assert(ExampleRows::kNoTarget == kIgnoredTarget, "the model ignores what examples do not learn");

// replicate x shard x context x tp, without the outer and inner ones of a single rank.
DeviceMesh make_mesh(RankContext& rank, const TrainConfig& c) {
  std::vector<MeshDim> dims;
  if (c.replicas > 1) dims.push_back({"replicate", static_cast<int>(c.replicas)});
  dims.push_back({"shard", static_cast<int>(c.data_ranks() / c.replicas)});
  if (c.context > 1) dims.push_back({"context", static_cast<int>(c.context)});
  if (c.tp > 1) dims.push_back({"tp", static_cast<int>(c.tp)});
  return DeviceMesh(rank.world, std::move(dims));
}

std::shared_ptr<Communicator> ranks_along(const DeviceMesh& mesh, std::vector<std::string> dims) {
  std::erase_if(dims, [&](const std::string& d) { return !mesh.has(d); });
  return mesh.flatten(dims);
}

// All data-parallel ranks, both replicas and shards: ranks of equal "expert" coordinate hold the same
// experts.
std::optional<DeviceMesh> make_expert_mesh(RankContext& rank, const TrainConfig& c) {
  if (c.experts == 0) return std::nullopt;
  return DeviceMesh(rank.world, {{"expert_shard", static_cast<int>(c.ranks / c.expert_parallel)},
                                 {"expert", static_cast<int>(c.expert_parallel)}});
}

FullyShardOptions shard_options(const TrainConfig& c) {
  FullyShardOptions o;
  o.strategy = *c.strategy;
  o.outer = c.outer;
  o.reshard_after_forward = c.reshard_after_forward;
  o.compute_dtype = c.precision;
  o.master = c.master;
  o.master_place = master_place(c);
  o.grad_dtype = c.grad_dtype;
  o.whole_state_blocks = quantizes_state(c);
  const LayoutChoice layout = layout_of(c);
  o.layout = layout.policy;
  o.packing = layout.packing;
  o.bucket_elements = c.bucket_size;
  return o;
}

// Experts reduce over the ranks that hold them, and average over all whose tokens they see. Whatever
// --replicas says, they are sharded over all ranks that hold them: their mesh has no replicas. Where only
// --outer shards optimizer state, that alone is sharded.
FullyShardOptions expert_options(FullyShardOptions o, const TrainConfig& c) {
  if (o.strategy == Strategy::no_shard && o.outer == Outer::optim && c.replicas > 1)
    o.strategy = Strategy::optim;
  o.shard_dim = "expert_shard";
  o.gradient_ranks = static_cast<int>(c.data_ranks() * c.context);
  o.outer = Outer::no_shard;
  return o;
}

// Returns the padding of the buffers of these groups together, in percent.
double padding_of(const std::vector<const GroupPlan*>& groups) {
  int64_t padding = 0, all = 0;
  for (const GroupPlan* g : groups) {
    padding += g->layout->padding();
    all += g->layout->buffer_elements();
  }
  return 100.0 * static_cast<double>(padding) / static_cast<double>(std::max<int64_t>(1, all));
}

}  // namespace

Trainer::Trainer(RankContext& rank, const TrainConfig& config, std::shared_ptr<const TokenWindows> windows,
                 const ModelBuilder& build)
    : rank_(rank),
      config_(config),
      windows_(std::move(windows)),
      mesh_(make_mesh(rank, config)),
      data_(ranks_along(mesh_, {"replicate", "shard"})),
      losses_(ranks_along(mesh_, {"replicate", "shard", "context"})),
      expert_mesh_(make_expert_mesh(rank, config)),
      built_(build(config, nn::TensorParallel::of(mesh_),
                   expert_mesh_ ? nn::ExpertParallel::of(*expert_mesh_) : nn::ExpertParallel{},
                   nn::ContextParallel::of(mesh_))),
      model_(*built_),
      seed_(config.seed),
      skips_(config.max_skipped_steps) {
  freeze_parameters(model_, config.freeze);
  routing_ = route(model_, routing_options(config));
  const FullyShardOptions options = shard_options(config);
  model_.set_recompute(config.recompute != Recompute::none,
                       config.recompute == Recompute::offload ? Place::host : Place::device);
  for (size_t i = 0; i < model_.blocks(); ++i)
    if (ModuleBase* experts = model_.experts(i))
      fully_shard(*experts, *expert_mesh_, expert_options(options, config));
  for (size_t i = 0; i < model_.blocks(); ++i) fully_shard(model_.block(i), mesh_, options);
  fully_shard(model_, mesh_, options, {.prefetch = static_cast<int>(config.prefetch), .seed = config.seed});
  first_weights_ = load_first_weights(model_, config);
  if (config.trains() || config.explain_plan || !config.save.empty()) {  // else no optimizer state
    optimizer_.emplace(model_, routing_, optimizer_options(config));
    muon_ = uses(config, OptimizerWord::normuon)
                ? &dynamic_cast<NorMuon&>(optimizer_->rule(NorMuon::kName)).muon()
                : &optimizer_->muon();
    if (auto maxima = model_.logit_maxima(); !maxima.empty())
      optimizer_->after_update(
          std::make_shared<QkClip>(model_, std::move(maxima), QkClipOptions{config.qk_clip}));
  }
  if (!config.resume.empty()) resume();
}

void Trainer::resume() {
  LoadOptions options;
  options.model = config_.resume_parts != ResumeParts::optimizer;
  options.optimizer = config_.resume_parts != ResumeParts::model && optimizer_.has_value();
  options.allow_new_state = config_.allow_new_state;
  options.convert_forms = config_.convert_forms;
  options.averages = config_.use_ema && !optimizer_;
  resumed_ = sherd::resume(config_.resume, model_, optimizer_ ? &*optimizer_ : nullptr, options,
                           [&](const TrainingState& saved) { return misfit(saved, config_); });
  if (config_.resume_parts == ResumeParts::model) return;
  const TrainingState& state = resumed_->report.training;
  step_ = state.step;
  sequences_ = state.sequences;
  seed_ = state.seed;
}

std::vector<std::string> Trainer::differences() const {
  std::vector<std::string> lines;
  if (!resumed_ || config_.resume_parts == ResumeParts::model) return lines;
  lines = resumed_->report.converted;
  if (!resumed_->report.averages_restarted.empty())
    lines.emplace_back("the checkpoint has no averages of weights (--ema): they start from its weights");
  const auto& info = resumed_->report.training.info;
  const auto before = info.find("data");
  if (windows_ && before != info.end() && before->second != windows_->describe())
    lines.push_back(fmt::format(
        "the data ({}) is not what the checkpoint was trained on ({}); it is read from sequence {} on",
        windows_->describe(), before->second, sequences_));
  if (config_.seed != seed_)
    lines.push_back(fmt::format("--seed {} is not used: the run continues with the checkpoint's, {}",
                                config_.seed, seed_));
  return lines;
}

TrainingState Trainer::training_state() const {
  TrainingState state{.step = step_, .sequences = sequences_, .seed = seed_, .info = {}};
  state.info["writer"] = "sherd train_gpt";
  state.info["routing"] = routing_.summary();
  state.info["config"] = config_text(config_);
  state.info["mesh"] = runtime_of(model_).mesh().describe();
  state.info["strategy"] = fmt::format("{}, outer {}, layout {}", word_of(*config_.strategy),
                                       word_of(config_.outer), word_of(config_.layout));
  state.info["muon.momentum"] = "ema";
  if (windows_) state.info["data"] = windows_->describe();
  if (std::string model = text_for_checkpoints(config_); !model.empty())
    state.info["model"] = std::move(model);
  return state;
}

SavedRun Trainer::saved_run() {
  return {.world = rank_.world,
          .model = model_,
          .optimizer = optimizer_ ? &*optimizer_ : nullptr,
          .resumed = resumed_ ? &*resumed_ : nullptr,
          .state = [this] { return training_state(); }};
}

TokenWork Trainer::work() const { return trained_work(config_, model_); }

double Trainer::flops_per_token() const { return training_flops(work(), config_.seq); }

ParameterCount Trainer::parameters() const { return count_parameters(config_, model_); }

std::string Trainer::explain_plan() const {
  if (!optimizer_) return "";
  if (!uses(config_, OptimizerWord::soap)) return muon_->explain();
  const std::string soap = dynamic_cast<const WholeMatrices&>(optimizer_->rule(Soap::kName)).explain();
  return uses(config_, OptimizerWord::muon) || uses(config_, OptimizerWord::normuon)
             ? muon_->explain() + "\n" + soap
             : soap;
}

std::vector<MatrixPlan> Trainer::muon_plans() const {
  return muon_ ? muon_->plans() : std::vector<MatrixPlan>();
}

std::string Trainer::describe() const {
  const ShardRuntime& runtime = runtime_of(model_);
  const int ranks = rank_.world->size();
  std::string out = fmt::format("{} rank{} ({}), rank 0 on {}\n", ranks, ranks == 1 ? "" : "s",
                                word_of(config_.comm.value()), rank_.device->describe());
  if (!rank_.processors.empty()) out += rank_.processors + "\n";
  out += fmt::format("mesh {}; strategy {}{}; layout {}; {} units of {} compute\n", runtime.mesh().describe(),
                     word_of(*config_.strategy),
                     config_.replicas > 1 ? fmt::format(", outer {}", word_of(config_.outer)) : "",
                     word_of(config_.layout), runtime.units().size(), word_of(config_.precision));
  if (const auto [all, active, trained] = parameters(); trained < all)
    out += fmt::format("{} of {} parameters are trained ({:.3g} %)\n", trained, all,
                       100 * static_cast<double>(trained) / static_cast<double>(all));
  if (expert_mesh_)
    out += fmt::format("experts on mesh {}: {} of {} on each rank, {} for each token\n",
                       expert_mesh_->describe(), config_.experts / config_.expert_parallel, config_.experts,
                       config_.expert_top_k);
  if (const std::string buffers = runtime.describe_buffers(); !buffers.empty()) out += buffers + "\n";
  for (ParamGroup* g : runtime.groups()) {
    if (!g->layout().cut_rows().empty())
      out += fmt::format("unit {}: {} row(s) cut by a rank boundary\n", g->unit(),
                         g->layout().cut_rows().size());
  }
  if (layout_of(config_).policy == LayoutPolicy::whole_param)
    out += fmt::format("{:.2f} % of all buffers is padding\n", padding_of(runtime.plan().groups()));
  if (!runtime.plan().buckets.empty()) {
    std::vector<const GroupPlan*> buckets;
    for (const BucketPlan& b : runtime.plan().buckets) buckets.push_back(&b.group);
    out += fmt::format("{} bucket{} of whole matrices, {:.2f} % padding\n", buckets.size(),
                       buckets.size() == 1 ? "" : "s", padding_of(buckets));
  }
  if (config_.outer == Outer::optim && config_.replicas == 1)
    out += "note: one replica, --outer optim has nothing to shard over\n";
  if (config_.strategy != Strategy::no_shard && config_.context == 1 &&
      config_.replicas == config_.data_ranks())
    out += fmt::format("note: every replica is one {}, {} has nothing {}to shard over\n",
                       config_.tp > 1 ? "tensor-parallel group" : "rank", word_of(*config_.strategy),
                       expert_mesh_ && expert_mesh_->size("expert_shard") > 1 ? "but the experts " : "");
  return out;
}

Trainer::Batch Trainer::load(const std::vector<int64_t>& windows) {
  const int64_t n = static_cast<int64_t>(windows.size()), t = config_.seq;
  std::vector<int32_t> inputs(static_cast<size_t>(n * t)), targets(inputs.size());
  std::vector<int32_t> starts(config_.packing ? inputs.size() : 0), lengths;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t window = windows[static_cast<size_t>(i)];
    windows_->fill(window, inputs.data() + i * t, targets.data() + i * t,
                   config_.packing ? starts.data() + i * t : nullptr);
    lengths.push_back(static_cast<int32_t>(windows_->places(window)));
  }
  const auto on_device = [&](const std::vector<int32_t>& values, const Shape& shape) {
    const Tensor tensor = Tensor::empty(*rank_.device, shape, DType::i32, "activations");
    ops::copy_from_host(rank_.device->compute(), tensor, values.data(), tensor.nbytes());
    return tensor;
  };
  const auto places = [&](const std::vector<int32_t>& values) { return on_device(values, {n, t}); };
  Batch batch{
      places(inputs),
      places(targets),
      {config_.packing ? places(starts) : Tensor(), config_.sft.empty() ? Tensor() : on_device(lengths, {n})},
      {}};
  if (config_.mtp_weight > 0) {
    const NextRows next = next_rows(inputs, targets, starts, lengths, t);
    batch.next = {.tokens = places(next.tokens), .targets = places(next.targets)};
  }
  return batch;
}

void Trainer::sync_parameters() {
  const CommCounts before = rank_.world->counts();
  for (auto& unit : runtime_of(model_).units()) {
    unit->sync();
    unit->wait();
  }
  rank_.device->compute().synchronize();
  for (auto& [name, count] : minus(rank_.world->counts(), before)) {
    carried_[name].calls += count.calls;
    carried_[name].bytes += count.bytes;
  }
}

std::string Trainer::evaluation_data() const {
  return fmt::format(
      "{:016x}", hash64(static_cast<uint64_t>(evaluation_windows(config_)), windows_->describe_evaluation()));
}

Trainer::Evaluation Trainer::evaluate() {
  if (!optimizer_ || optimizer_->average() == nullptr) return evaluate_weights();
  const CommCounts carried = carried_;
  Evaluation all = evaluate_weights();
  {
    const Averaged scope(*optimizer_);
    all.loss_ema = evaluate_weights().loss;
  }
  carried_ = carried;  // the next step copies its weights again
  return all;
}

void Trainer::use_averages() {
  if (optimizer_) averaged_.emplace(*optimizer_);  // else the checkpoint's averages were loaded
}

Trainer::Evaluation Trainer::evaluate_weights() {
  Evaluation all;
  sync_parameters();
  for (const TokenWindows::EvaluationSet& set : windows_->evaluation_sets(evaluation_windows(config_))) {
    const double loss = mean_loss(set.windows);
    all.loss += set.weight * loss;
    if (!set.name.empty()) all.sets.emplace_back(set.name, loss);
  }
  return all;
}

double Trainer::mean_loss(const std::vector<int64_t>& windows) {
  const auto held = static_cast<int64_t>(windows.size());
  if (held == 0) return std::numeric_limits<double>::quiet_NaN();
  Stream& s = rank_.device->compute();
  const int64_t micro = std::max<int64_t>(1, config_.microbatch());
  const int64_t share = (held + config_.data_ranks() - 1) / config_.data_ranks();
  const int64_t begin = std::min(held, data_->rank() * share), end = std::min(held, begin + share);
  const Tensor sum = Tensor::empty(*rank_.device, {1}, DType::f64, "activations");
  ops::fill(s, sum, 0);
  model_.set_training(false);
  // Every rank runs the same number of forwards; those behind its share repeat a window and are not counted.
  for (int64_t at = 0; at < share; at += micro) {
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < micro; ++i)
      rows.push_back(windows[static_cast<size_t>(std::min(begin + at + i, held - 1))]);
    const Batch batch = load(rows);
    const Tensor losses = model_(nn::Var(batch.inputs), batch.targets, 1.0f, batch.documents).losses;
    const int64_t counted = std::clamp<int64_t>(end - (begin + at), 0, std::min(micro, share - at));
    if (counted > 0) ops::accumulate_sum(s, sum, losses.flat(0, counted * (losses.numel() / micro)));
    s.synchronize();  // bounds the queued host copies
  }
  double local = 0;
  ops::copy_to_host(s, &local, sum);
  int64_t learned = 0;
  for (const int64_t w : windows) learned += windows_->learned(w);
  return data_sum(local) / static_cast<double>(learned);
}

bool Trainer::weights_are_finite() {
  Stream& s = rank_.device->compute();
  const Tensor sums = Tensor::empty(*rank_.device, {ExactSum::kWords}, DType::i64, "metrics");
  ops::fill(s, sums, 0);
  for (auto& [name, p] : model_.named_parameters())
    if (p.shard().numel() > 0)
      ops::accumulate_squares(s, sums, ops::weights_as_f32(s, p.shard(), p.shard_low()));
  const Tensor count = sums.flat(ExactSum::kNonFinite, ExactSum::kNonFinite + 1);
  rank_.world->all_reduce(s, count);
  int64_t not_finite = 0;
  ops::copy_to_host(s, &not_finite, count);
  return not_finite == 0;
}

bool Trainer::export_weights() {
  return sherd::export_weights(
      model_, config_.export_weights,
      {.dtype = config_.export_dtype,
       .metadata = {{"sherd.routing", routing_.summary()}},
       .existing = rank_.world->rank() == 0 ? existing_export(config_) : Existing::refuse});
}

bool Trainer::export_adapters() {
  return sherd::hf::export_adapters(model_, config_.export_adapter, lora_options(config_), config_.model,
                                    rank_.world->rank() == 0 ? existing_export(config_) : Existing::refuse);
}

bool Trainer::export_folder() { return train_gpt::export_folder(model_, config_, rank_.world->rank() == 0); }

RankMemory Trainer::replicated_memory() {
  return sherd::replicated_memory(model_, routing_, optimizer_ ? &*optimizer_ : nullptr);
}

double Trainer::data_sum(double value) {
  Stream& s = rank_.device->compute();
  const Tensor t = Tensor::empty(*rank_.device, {1}, DType::f64, "metrics");
  ops::copy_from_host(s, t, &value, sizeof value);
  losses_->all_reduce(s, t);
  ops::copy_to_host(s, &value, t);
  return value;
}

}  // namespace train_gpt
