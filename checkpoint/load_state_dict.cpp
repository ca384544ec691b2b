// Loading of a sharded model and its optimizer from named tensors in host memory.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include <sherd/checkpoint/detail/agreement.h>
#include <sherd/checkpoint/detail/comparison.h>
#include <sherd/checkpoint/detail/fill.h>
#include <sherd/checkpoint/detail/widen.h>
#include <sherd/checkpoint/state_dict.h>
#include <sherd/kernels/ops.h>
#include <sherd/kernels/random/random.h>

namespace sherd {
namespace {

// Elements sent at a time.
constexpr int64_t kLoadedElements = int64_t{4} << 20;

const HostTensor* find(const StateDict& dict, const Wanted& w) {
  const auto& part = w.section == Section::model ? dict.model : dict.optimizer;
  return find_by_names(w, [&](const std::string& name) {
    const auto found = part.find(name);
    return found == part.end() ? nullptr : &found->second;
  });
}

// Returns the tensors of the dict, without their data.
std::vector<CheckpointTensor> offers(const StateDict& dict) {
  std::vector<CheckpointTensor> all;
  for (auto& [name, t] : dict.model) all.push_back({name, Section::model, t.dtype, t.shape, {}});
  for (auto& [name, t] : dict.optimizer) all.push_back({name, Section::optim, t.dtype, t.shape, {}});
  return all;
}

// Returns the errors of the tensors to be read that their descriptions do not show.
std::vector<std::string> problems(const StateDict& dict, const std::vector<Wanted>& all, DictKind kind) {
  std::vector<std::string> wrong;
  for (const Wanted& w : all) {
    const HostTensor* t = find(dict, w);
    if (t == nullptr) continue;
    for (const std::string& name : w.tied)
      if (const auto other = dict.model.find(name);
          w.section == Section::model && other != dict.model.end() && other->second.data != t->data)
        wrong.push_back(fmt::format("'{}' and '{}' are one tensor in this model, and differ", w.name, name));
    int64_t elements = 0;
    for (const Box& b : t->boxes) elements += numel_of(b.size);
    if (elements * size_of(t->dtype) != static_cast<int64_t>(t->data.size())) {
      wrong.push_back(
          fmt::format("'{}' has boxes of {} elements and {} bytes", w.name, elements, t->data.size()));
    } else if (kind != DictKind::sharded && !t->whole()) {
      wrong.push_back(fmt::format("'{}' is not whole", w.name));
    } else if (kind == DictKind::sharded && t->boxes != w.boxes()) {
      wrong.push_back(fmt::format("'{}' has other pieces than this rank holds", w.name));
    } else if (w.count) {
      const std::string bad = t->dtype == DType::f32 ? check_count(t->values<float>()[0]) : "";
      if (!bad.empty()) wrong.push_back(fmt::format("'{}' {}", w.name, bad));
    }
  }
  return wrong;
}

// Elements [begin, begin + numel) of the dict's tensor to `to`, as its dtype.
void put(Stream& stream, const Tensor& to, const HostTensor& from, int64_t begin) {
  std::vector<float> values(static_cast<size_t>(to.nbytes() + 3) / sizeof(float));
  const int64_t bytes = size_of(from.dtype);
  std::memcpy(values.data(), from.data.data() + begin * bytes, static_cast<size_t>(to.numel() * bytes));
  if (from.dtype != to.dtype()) widen_in_place(from.dtype, values);
  ops::copy_from_host(stream, to, values.data(), to.nbytes());
}

// Every rank takes what it holds, piece by piece: from its own dict, or from rank 0's as it is sent.
void take(Stream& stream, Communicator& world, const Wanted& w, const HostTensor* from, DictKind kind) {
  const int64_t total = numel_of(w.shape);
  const bool sent = kind == DictKind::on_first && total > 0;
  // Weights and state arrive as f32, whatever they rest in.
  const DType dtype = w.rests() ? DType::f32 : w.local.dtype();
  const bool converts = dtype != w.local.dtype();
  Tensor memory;
  if (sent || (converts && total > 0))
    memory = Tensor::empty(stream.device(), {std::min(kLoadedElements, total)}, dtype, MemoryClass::message,
                           "state dict");
  const std::vector<GlobalRun> runs = w.runs();
  const ParamIndex base = runs.empty() ? ParamIndex(0) : runs.front().local;
  for (int64_t begin = 0; begin < total; begin += kLoadedElements) {
    const int64_t end = std::min(begin + kLoadedElements, total);
    const Tensor piece = sent ? memory.flat(0, end - begin) : Tensor();
    if (sent && from != nullptr) put(stream, piece, *from, begin);
    if (sent) world.broadcast(stream, piece.bytes(), 0);
    for (const GlobalRun& run : runs) {
      const int64_t first = std::max(begin, run.global.value),
                    last = std::min(end, run.global.value + run.count);
      if (first >= last) continue;
      const int64_t at = run.local - base + (first - run.global.value);
      const Tensor part = sent       ? piece.flat(first - begin, last - begin)
                          : converts ? memory.flat(first - begin, last - begin)
                                     : w.local.flat(at, at + (last - first));
      if (!sent) put(stream, part, *from, kind == DictKind::sharded ? at : first);
      if (sent || converts) w.store(stream, at, part);
    }
    stream.synchronize();
  }
}

}  // namespace

LoadReport load_state_dict(ModuleBase& root, Optimizer* optimizer, const StateDict& dict, DictKind kind,
                           const LoadOptions& options) {
  ShardRuntime& runtime = runtime_of(root);
  Communicator& world = *runtime.mesh().world();
  Stream& stream = runtime.device().compute();
  Agreement ranks(world, "load_state_dict");
  ranks.require_equal(static_cast<int64_t>(kind) * 4 + options.model * 2 + options.optimizer,
                      "load_state_dict: the kind of dict, or what is to be loaded, differs");
  const bool reads = kind != DictKind::on_first || world.rank() == 0;
  LoadReport report;
  report.training.step = dict.steps;
  std::vector<Wanted> all;
  ranks.run_collectively([&] {
    all = wanted(root, optimizer == nullptr ? std::vector<Optimizer*>{} : std::vector{optimizer}, options,
                 "load_state_dict");
    if (!reads) return;
    require_fit("the state dict", offers(dict), all, options, report);
    if (const auto wrong = problems(dict, all, kind); !wrong.empty())
      throw InvalidArgument(
          fmt::format("the state dict does not fit the run: {}{}", fmt::join(wrong, ", "),
                      kind == DictKind::sharded
                          ? "; a sharded dict goes back to the ranks, strategy and layout that it is of: "
                            "load a full one (DictKind::on_first) or a checkpoint elsewhere"
                          : ""));
  });
  uint64_t digest = 0;
  for (auto* list : {&report.started_anew, &report.left_out, &report.averages_restarted, &report.missing,
                     &report.unexpected}) {
    if (kind == DictKind::on_first) *list = ranks.broadcast(*list);
    digest = hash64(digest, fmt::format("{}\n", fmt::join(*list, "\n")));
  }
  if (kind == DictKind::on_first) {
    report.training.step = std::stoll(ranks.broadcast(std::to_string(dict.steps)));
  } else {
    ranks.require_equal(static_cast<int64_t>(digest), "load_state_dict: dicts of different names");
    ranks.require_equal(dict.steps, "load_state_dict: dicts of different steps");
  }
  std::set<std::string> absent(report.started_anew.begin(), report.started_anew.end());
  absent.insert(report.missing.begin(), report.missing.end());
  absent.insert(report.averages_restarted.begin(), report.averages_restarted.end());
  fill(runtime, kind == DictKind::on_first ? nullptr : &ranks, all, [&](size_t i) {
    if (absent.contains(all[i].name)) return false;
    take(stream, world, all[i], reads ? find(dict, all[i]) : nullptr, kind);
    return true;
  });
  if (options.optimizer) optimizer->set_steps(report.training.step);
  return report;
}

}  // namespace sherd
