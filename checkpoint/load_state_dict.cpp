// Loading of a sharded model and its optimizer from named tensors in host memory.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include <sherd/checkpoint/detail/agreement.h>
#include <sherd/checkpoint/detail/comparison.h>
#include <sherd/checkpoint/state_dict.h>
#include <sherd/fsdp/weights_change.h>
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
  const int64_t count = to.numel();
  const auto widened = [&](auto values) {
    std::vector<float> wide;
    wide.reserve(static_cast<size_t>(count));
    for (int64_t i = begin; i < begin + count; ++i)
      wide.push_back(static_cast<float>(values[static_cast<size_t>(i)]));
    ops::copy_from_host(stream, to, wide.data(), to.nbytes());
  };
  if (from.dtype == to.dtype()) {
    ops::copy_from_host(stream, to, from.data.data() + begin * size_of(from.dtype), to.nbytes());
  } else if (from.dtype == DType::bf16) {
    widened(from.values<bf16>());
  } else {
    widened(from.values<f16>());
  }
}

// From the rank's own dict: the elements that it holds, out of all or one after the other.
void fill(Stream& stream, const Wanted& w, const HostTensor& from, DictKind kind) {
  std::vector<GlobalRun> runs = w.runs();
  const ParamIndex base = runs.empty() ? ParamIndex(0) : runs.front().local;
  for (const GlobalRun& run : runs) {
    for (int64_t done = 0; done < run.count; done += kLoadedElements) {
      const int64_t at = run.local - base + done, count = std::min(kLoadedElements, run.count - done);
      put(stream, w.local.flat(at, at + count), from,
          kind == DictKind::sharded ? at : run.global.value + done);
      stream.synchronize();
    }
  }
}

// From rank 0's dict, piece by piece; every rank takes what it holds.
void receive(Stream& stream, Communicator& world, const Wanted& w, const HostTensor* from) {
  const int64_t total = numel_of(w.shape);
  if (total == 0) return;
  const Tensor memory = Tensor::empty(stream.device(), {std::min(kLoadedElements, total)}, w.local.dtype(),
                                      MemoryClass::message, "state dict");
  const std::vector<GlobalRun> runs = w.runs();
  const ParamIndex base = runs.empty() ? ParamIndex(0) : runs.front().local;
  for (int64_t begin = 0; begin < total; begin += kLoadedElements) {
    const int64_t end = std::min(begin + kLoadedElements, total);
    const Tensor piece = memory.flat(0, end - begin);
    if (from != nullptr) put(stream, piece, *from, begin);
    world.broadcast(stream, piece.bytes(), 0);
    for (const GlobalRun& run : runs) {
      const int64_t first = std::max(begin, run.global.value),
                    last = std::min(end, run.global.value + run.count);
      if (first >= last) continue;
      const int64_t at = run.local - base + (first - run.global.value);
      ops::copy(stream, w.local.flat(at, at + (last - first)), piece.flat(first - begin, last - begin));
    }
    stream.synchronize();
  }
}

// Names have no control characters.
std::vector<std::string> from_first(Agreement& ranks, const std::vector<std::string>& names) {
  std::vector<std::string> all;
  const std::string text = ranks.broadcast(fmt::format("{}", fmt::join(names, "\n")));
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    all.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return all;
}

uint64_t digest_of(const LoadReport& report) {
  uint64_t digest = 0;
  for (auto* list : {&report.started_anew, &report.left_out, &report.missing, &report.unexpected}) {
    digest = hash64(digest, "list");
    for (const std::string& name : *list) digest = hash64(digest, name);
  }
  return digest;
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
    if (options.optimizer && optimizer == nullptr)
      throw InvalidArgument("load_state_dict: an optimizer is needed to load optimizer state into");
    std::vector<const Optimizer*> loaded;
    if (options.optimizer) loaded.push_back(optimizer);
    all = wanted(root, options.model, loaded);
    if (!reads) return;
    const std::vector<CheckpointTensor> offered = offers(dict);
    const Comparison comparison("the state dict", offered, all, options);
    comparison.require_fit();
    if (const auto wrong = problems(dict, all, kind); !wrong.empty())
      throw InvalidArgument(
          fmt::format("the state dict does not fit the run: {}{}", fmt::join(wrong, ", "),
                      kind == DictKind::sharded
                          ? "; a sharded dict goes back to the ranks, strategy and layout that it is of: "
                            "load a full one (DictKind::on_first) or a checkpoint elsewhere"
                          : ""));
    comparison.report(report);
  });
  if (kind == DictKind::on_first) {
    for (auto* list : {&report.started_anew, &report.left_out, &report.missing, &report.unexpected})
      *list = from_first(ranks, *list);
    report.training.step = std::stoll(ranks.broadcast(std::to_string(dict.steps)));
  } else {
    ranks.require_equal(static_cast<int64_t>(digest_of(report)), "load_state_dict: dicts of different names");
    ranks.require_equal(dict.steps, "load_state_dict: dicts of different steps");
  }

  std::set<std::string> absent(report.started_anew.begin(), report.started_anew.end());
  absent.insert(report.missing.begin(), report.missing.end());
  WeightsChange change(runtime);
  change.begin_update();
  for (const Wanted& w : all) {
    if (absent.contains(w.name)) {  // allowed: state starts anew, values stay
      if (w.section == Section::optim) ops::fill(stream, w.local, 0);
    } else if (kind == DictKind::on_first) {
      receive(stream, world, w, reads ? find(dict, w) : nullptr);
    } else {
      fill(stream, w, *find(dict, w), kind);
    }
  }
  stream.synchronize();
  change.end();
  if (options.model) runtime.weights_replaced();
  if (options.optimizer) optimizer->set_steps(report.training.step);
  return report;
}

}  // namespace sherd
