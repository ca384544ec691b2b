#include "train_gpt/run/search.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/error.h>
#include <sherd/kernels/device/hardware.h>
#include <sherd/train/plan/measure_hardware.h>

#include "train_gpt/rules/config_rules.h"
#include "train_gpt/run/search_bounds.h"
#include "train_gpt/settings/optimizer_config.h"
#include "train_gpt/settings/settings.h"

namespace train_gpt {

using sherd::StepTime;

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

using Pick = std::array<uint8_t, kAxes>;

/// Figures of a candidate, of rank 0 or of all planned ranks.
struct Run {
  StepTime time = {};
  int64_t bytes = 0, peak = 0, host_bytes = 0;
  LeastTime least = {};  // of rank 0
  std::map<std::string, int64_t> by_class;
  std::vector<int> further = {};  // ranks that are not in it
  int64_t within = 0;             // DryDeviceOptions::keep_within
  bool returned = false;          // the step returned kept blocks: its time depends on `within`
};

struct Node {
  double time = 0, bytes = 0;  // lower bounds of its candidates'
  int changes = 0;             // axes with another value than the base's
  Pick pick{};
  size_t axes = 0;      // that are picked
  bool shaped = false;  // has the bound of its shape
  size_t related = 0;   // axes in which a candidate has given it a bound
  auto order() const { return std::tuple(time, changes, pick); }
};

/// A run by which others are bounded.
struct Relative {
  TrainConfig config;
  Pick pick;
  const Run* run;
};

}  // namespace

struct Search::Impl {
  TrainConfig base;
  SearchOptions options;
  Constraints constraints;
  ParameterCount count;
  std::optional<ModelSource> source;
  std::map<std::string, std::optional<Run>> runs;  // nullopt: the run is not possible
  std::map<std::string, LeastMicrobatch> shapes;
  SearchResult result;
  std::string refused;
  int64_t made = 0, work = 0;  // dry runs of this search, and their operations

  double limit() const { return static_cast<double>(within()); }
  int64_t within() const {
    return sherd::planned_limit(constraints.memory_bytes > 0 ? constraints.memory_bytes
                                                             : options.hardware.memory_bytes);
  }
  Configs at(size_t axis, const TrainConfig& c) const {
    return choices(axis, c, constraints, options.hardware.ranks_per_host);
  }

  TrainConfig config_of(const Node& n) const {
    TrainConfig c = base;
    for (size_t axis = 0; axis < n.axes; ++axis) c = std::move(at(axis, c)[n.pick[axis]]);
    return c;
  }

  /// Calls `take` with every choice of the node's further axes, up to `axes`.
  template <class Take>
  void each(const TrainConfig& c, Node node, size_t axes, const Take& take) const {
    if (node.axes == axes) return take(c, node);
    const Configs all = at(node.axes, c);
    const size_t axis = node.axes++;
    for (size_t i = 0; i < all.size(); ++i) {
      Node next = node;
      next.pick[axis] = static_cast<uint8_t>(i);
      next.changes += i > 0;
      each(all[i], next, axes, take);
    }
  }

  bool keeps_rules(const TrainConfig& c) {
    const sherd::GivenFlags none;
    const Given given{none, [](std::string_view) { return false; }};
    std::vector<std::string> problems;
    check_rules(c, {}, given, problems, source ? &*source : nullptr);
    if (problems.empty()) return true;
    refuse(problems.front());
    return false;
  }
  void refuse(const std::string& reason) {
    if (refused.empty()) refused = reason;
  }

  Forecast dry_run(const TrainConfig& c, int rank) {
    options.forecast.device.keep_within = within();
    Forecast f = forecast(c, rank, options.forecast);
    ++made;
    if (options.on_dry_run) options.on_dry_run();
    // Muon's plan goes through the matrices of all ranks.
    work += std::ssize(f.rank.record.entries) +
            std::ssize(f.newton_schulz_cost) * c.layers * std::max<int64_t>(1, c.experts) / 10;
    return f;
  }

  /// The least of a run with the first layers of the model alone.
  LeastMicrobatch shape_of_layers(TrainConfig c, int64_t layers) {
    if (layers < c.layers && c.files) {
      const auto files = std::make_shared<ModelFiles>(*c.files);
      sherd::nn::ModelDescription& d = files->source.config.description;
      d.layers = layers;
      if (!d.windowed.empty()) d.windowed.resize(static_cast<size_t>(layers));
      c.files = files;
    }
    c.layers = layers;
    return shape_of(dry_run(c, 0).rank, options.hardware);
  }

  /// Layers of one kind have the same work and keep the same bytes: two short models give those of the whole one. The peak is the
  /// most of sums, convex in the layers, so that what it is beyond two of them is at least this.
  LeastMicrobatch shape_of_model(const TrainConfig& c) {
    const sherd::nn::ModelDescription d = description_of(c);
    int64_t period = 1;  // of layers with a window
    const auto repeats = [&] {
      for (int64_t i = period; i < std::ssize(d.windowed); ++i)
        if (d.has_window(i) != d.has_window(i - period)) return false;
      return true;
    };
    while (period < c.layers && !repeats()) ++period;
    const int64_t few = d.mixture.dense_layers + (c.layers - d.mixture.dense_layers) % period + period;
    if (few + period >= c.layers) return shape_of_layers(c, c.layers);
    const LeastMicrobatch first = shape_of_layers(c, few), second = shape_of_layers(c, few + period);
    const auto times = static_cast<double>((c.layers - few) / period);
    return {first.seconds + times * (second.seconds - first.seconds),
            first.activations + times * (second.activations - first.activations),
            first.links.with(second.links.with(first.links, -1), times)};
  }

  const LeastMicrobatch& shape(const TrainConfig& c) {
    const std::string key = fmt::format("{} {} {} {} {}", c.tp, c.context, c.expert_parallel, c.microbatch(),
                                        word_of(c.recompute));
    const auto [known, fresh] = shapes.try_emplace(key);
    if (!fresh) return known->second;
    TrainConfig one = c;
    one.batch = c.microbatch() * c.data_ranks();
    one.grad_accum = one.replicas = 1;
    one.strategy = sherd::Strategy::no_shard;
    one.outer = sherd::Outer::no_shard;
    one.optimizer = OptimizerWord::adamw;
    try {
      known->second = shape_of_model(one);
    } catch (const sherd::Error&) {  // it has no bound
      known->second = {};
    }
    return known->second;
  }

  std::string key_of(const TrainConfig& c) const {
    return fmt::format("{}", fmt::join(changed_flags(c, base, [](std::string_view) { return true; }), " "));
  }

  void add_rank(Run& run, const TrainConfig& c, int rank) {
    const sherd::RankForecast f = dry_run(c, rank).rank;
    if (const StepTime t = play(f.record, options.hardware); t.total > run.time.total) run.time = t;
    run.bytes = std::max(run.bytes, f.peak_bytes + f.by_class.at("slack"));
    run.host_bytes = std::max(run.host_bytes, f.host_bytes);
    run.returned |= f.record.returned > 0;
  }

  /// The candidate's run on rank 0, and on all planned ranks unless that is slower than `enough` or does not fit. Null: the run is
  /// not possible.
  Run* run_of(const TrainConfig& c, double enough) {
    const auto [known, fresh] = runs.try_emplace(key_of(c));
    std::optional<Run>& run = known->second;
    const bool other =
        run && run->within != within() &&
        (run->returned || (run->peak <= within() && run->bytes > std::min(run->within, within())));
    try {
      if (fresh || other) {
        const Forecast f = dry_run(c, 0);
        run = Run{.time = play(f.rank.record, options.hardware),
                  .bytes = f.rank.peak_bytes + f.rank.by_class.at("slack"),
                  .peak = f.rank.peak_bytes,
                  .host_bytes = f.rank.host_bytes,
                  .least = LeastTime(f.rank.record, options.hardware),
                  .by_class = f.rank.by_class,
                  .further = further_ranks(f, c.ranks, PlannedRanks::several),
                  .returned = f.rank.record.returned > 0};
      }
      if (!run) return nullptr;
      run->within = within();
      if (run->time.total < enough && static_cast<double>(run->bytes) <= limit())
        for (const int rank : std::exchange(run->further, {})) add_rank(*run, c, rank);
    } catch (const sherd::Error& e) {
      refuse(e.what());
      run.reset();
    }
    return run ? &*run : nullptr;
  }

  /// Lower bound of the bytes of a rank. @param activations of a microbatch, where they are known
  double bytes_of(const TrainConfig& c, const Forms& form, double activations) const {
    const auto [stored, gradients] = stored_bytes(c, count, form);
    // A second microbatch finds the gradients of the first one.
    return stored + (c.grad_accum > 1 ? activations + gradients : std::max(activations, gradients));
  }

  /// The least bytes of each form that the search may choose.
  Forms least_forms_of_all() const {
    Forms least(base);
    Node node;
    node.axes = kTraffic;
    each(base, node, kAxes, [&](const TrainConfig& c, const Node&) {
      const Forms form(c);
      least.weight = std::min(least.weight, form.weight);
      least.master = std::min(least.master, form.master);
      least.state = std::min(least.state, form.state);
      least.gradient = std::min(least.gradient, form.gradient);
    });
    return least;
  }

  bool same_bits(const Node& n) const {
    Constraints bits = constraints;
    bits.keep_bits = true;
    TrainConfig c = base;
    for (size_t axis = 0; axis < n.axes; ++axis) {
      TrainConfig next = at(axis, c)[n.pick[axis]];
      if (std::ranges::count(choices(axis, c, bits, options.hardware.ranks_per_host), next) == 0)
        return false;
      c = std::move(next);
    }
    return true;
  }

  void set_figures(Candidate& c, const Run& run) const {
    c.time = run.time;
    c.bytes = run.bytes;
    c.host_bytes = run.host_bytes;
    c.fits = static_cast<double>(run.bytes) <= limit() &&
             (options.host_bytes == 0 || run.host_bytes <= options.host_bytes);
  }

  void add(const TrainConfig& c, const Node& n, const Run& run) {
    result.candidates.push_back({.config = c,
                                 .same_bits = same_bits(n),
                                 .changes = changed_flags(c, base, [](std::string_view) { return true; })});
    set_figures(result.candidates.back(), run);
  }

  /// Raises the bounds of a candidate by the run of another one that offloads nothing, has the same layout, and differs in forms
  /// alone or also in the rest of the traffic.
  void relate(Node& n, const TrainConfig& c, const Relative& other, double& bytes) const {
    const Forms form(c), old(other.config);
    const Run& run = *other.run;
    const auto part_of = [](double now, double before) { return before > now ? now / before : 1; };
    const auto live = [&](const char* name) { return static_cast<double>(run.by_class.at(name)); };
    const bool same_traffic = n.related == kTraffic;
    const double part = c.optimizer == OptimizerWord::adamw && c.route.empty()
                            ? part_of(form.update_bytes(), old.update_bytes()) - 0.05
                            : kLeastForm;
    if (offloads(other.config)) {  // windows are of the class of what passes them, and updates wait for them
      bytes = static_cast<double>(run.peak) - live("optimizer") - live("master");
    } else {
      bytes = static_cast<double>(run.peak) - live("optimizer") * (1 - part_of(form.state, old.state)) -
              live("master") * (1 - part_of(form.master, old.master));
      if (same_traffic)
        n.time = std::max(n.time, run.least.same_traffic(part));
      else if (std::equal(n.pick.begin() + 10, n.pick.begin() + kTraffic, other.pick.begin() + 10))
        n.time = std::max(n.time, run.least.same_work(part));
    }
    bytes -= live("gradient") * (1 - part_of(form.gradient, old.gradient));
    if (!same_traffic)
      for (const char* const name : {"gathered", "message", "scratch", "buffer"}) bytes -= live(name);
  }

  SearchResult search(const Constraints& limits, int64_t most_work, bool every);
  void sort_candidates();
  void prefer_few_changes();
  void add_nearest(std::vector<std::pair<double, Node>> dropped);
};

SearchResult Search::Impl::search(const Constraints& limits, int64_t most_work, bool every) {
  constraints = limits;
  result = {};
  made = work = 0;
  const auto later = [](const Node& a, const Node& b) { return a.order() > b.order(); };
  std::priority_queue<Node, std::vector<Node>, decltype(later)> queue(later);
  std::vector<std::pair<double, Node>> dropped;
  const auto push = [&](Node n, double bytes) {
    n.bytes = bytes;
    if (every || bytes <= limit()) return queue.push(n);
    dropped.emplace_back(bytes, n);
    result.too_large += n.axes == kArrangement;
  };
  const Forms least = least_forms_of_all();
  each(base, {}, kArrangement, [&](const TrainConfig& c, Node n) {
    if (!divides(c)) return;
    ++result.considered;
    if (!every) n.time = link_time(c, count, options.hardware).most();
    push(n, bytes_of(c, least, 0));
  });
  std::map<std::vector<uint8_t>, Relative> relatives;  // by the axes in which they are equal
  const auto family = [](const Node& n, size_t axes) {
    return std::vector<uint8_t>(n.pick.begin(), n.pick.begin() + axes);
  };
  std::vector<double> best(options.wanted, kNever);  // ascending
  while (!queue.empty()) {
    Node n = queue.top();
    queue.pop();
    const double enough = every ? kNever : best.back() * (1 - options.tolerance);
    result.bound = n.time;
    if (!every && (n.time >= enough || work >= most_work)) {
      result.ended_early = n.time < enough;
      break;
    }
    const TrainConfig c = config_of(n);
    if (!n.shaped) {
      if (!keeps_rules(c)) continue;
      n.shaped = true;
      const LeastMicrobatch& s = shape(c);
      const auto microbatches = static_cast<double>(c.grad_accum);
      if (!every)
        n.time = std::max(microbatches * s.seconds,
                          link_time(c, count, options.hardware).with(s.links, microbatches).most());
      push(n, bytes_of(c, least, s.activations));
      continue;
    }
    if (n.axes == kArrangement) {
      const double activations = shape(c).activations;
      each(c, n, kAxes, [&](const TrainConfig& leaf, const Node& node) {
        push(node, bytes_of(leaf, Forms(leaf), activations));
      });
      continue;
    }
    bool raised = false;
    for (const size_t axes : {kTraffic, kLayout}) {
      const auto relative = relatives.find(family(n, axes));
      if (every || raised || n.related >= axes || relative == relatives.end()) continue;
      n.related = axes;
      double bytes = 0;
      relate(n, c, relative->second, bytes);
      push(n, bytes);
      raised = true;
    }
    if (raised) continue;
    if (!keeps_rules(c)) continue;
    const Run* const run = run_of(c, enough);
    if (run == nullptr) continue;
    for (const size_t axes : {kTraffic, kLayout})
      relatives.try_emplace(family(n, axes), Relative{c, n.pick, run});
    add(c, n, *run);
    if (result.candidates.back().fits && run->time.total < best.back()) {
      best.back() = run->time.total;
      std::ranges::sort(best);
    }
  }
  result.bound = queue.empty() ? best.front() : std::min(best.front(), result.bound);
  result.runs = made;
  if (best.front() == kNever) {
    for (; !queue.empty(); queue.pop()) dropped.emplace_back(queue.top().bytes, queue.top());
    add_nearest(std::move(dropped));
  }
  result.refused = refused;
  sort_candidates();
  prefer_few_changes();
  return std::move(result);
}

/// Sorts by time, until those that may come first have the figures of all planned ranks.
void Search::Impl::sort_candidates() {
  auto& all = result.candidates;
  for (bool complete = false; !complete;) {
    std::ranges::stable_sort(all, {}, [](const Candidate& c) {
      return std::tuple(!c.fits, c.fits ? c.time.total : static_cast<double>(c.bytes), c.changes.size());
    });
    complete = true;
    if (!result.fits()) return;
    const double enough = all.front().time.total * (1 + options.tolerance);
    for (Candidate& c : all) {
      if (!c.fits || c.time.total > enough) break;
      const Run* const run = run_of(c.config, kNever);
      const double before = c.time.total;
      if (run != nullptr) set_figures(c, *run);
      c.fits = c.fits && run != nullptr;
      complete = complete && c.fits && c.time.total == before;
    }
  }
}

/// Puts the candidate with the fewest changes first of those that are as fast by the tolerance; bits that stay count first.
void Search::Impl::prefer_few_changes() {
  auto& all = result.candidates;
  if (!result.fits()) return;
  const double enough = all.front().time.total * (1 + options.tolerance);
  const auto end =
      std::ranges::find_if(all, [&](const Candidate& c) { return !c.fits || c.time.total > enough; });
  const auto first = std::ranges::min_element(
      all.begin(), end, {}, [](const Candidate& c) { return std::tuple(!c.same_bits, c.changes.size()); });
  std::rotate(all.begin(), first, first + 1);
}

/// Runs those that are nearest to the limit by their bounds, where nothing fits.
void Search::Impl::add_nearest(std::vector<std::pair<double, Node>> dropped) {
  constexpr size_t kShaped = 64, kRun = 4;
  const auto nearer = [](const auto& a, const auto& b) {  // more microbatches and recomputation take less
    return std::tuple(a.first, b.second.pick[7], b.second.pick[6], a.second.order()) <
           std::tuple(b.first, a.second.pick[7], a.second.pick[6], b.second.order());
  };
  const auto nearest = [&](size_t most) {
    std::ranges::sort(dropped, nearer);
    dropped.resize(std::min(dropped.size(), most));
  };
  nearest(kShaped);
  std::vector<std::pair<double, Node>> all;
  for (const auto& [bytes, n] : std::exchange(dropped, {})) {
    const TrainConfig c = config_of(n);
    if (!keeps_rules(c)) continue;
    const double activations = shape(c).activations;
    each(c, n, kAxes, [&](const TrainConfig& leaf, const Node& node) {
      dropped.emplace_back(bytes_of(leaf, Forms(leaf), activations), node);
    });
    nearest(kShaped);
  }
  size_t run_so_far = 0;
  for (const auto& [bytes, n] : dropped) {
    const TrainConfig c = config_of(n);
    if (!keeps_rules(c)) continue;
    if (const Run* const run = run_of(c, kNever)) add(c, n, *run);
    if (++run_so_far == kRun) break;
  }
}

std::vector<Candidate> distinct(const std::vector<Candidate>& candidates, size_t most) {
  std::vector<Candidate> all;
  for (const Candidate& c : candidates) {
    const auto has_all = [&](const Candidate& earlier) {
      return std::ranges::all_of(
          earlier.changes, [&](const std::string& flag) { return std::ranges::count(c.changes, flag) > 0; });
    };
    if (c.fits && all.size() < most && std::ranges::none_of(all, has_all)) all.push_back(c);
  }
  return all;
}

std::vector<Candidate> remedies(const TrainConfig& base, SearchOptions options, Constraints limits,
                                size_t most) {
  for (const char* const name : {"tp", "context", "expert_parallel", "replicas", "outer", "layout",
                                 "prefetch", "muon_mode", "muon_working"})
    limits.fixed.insert(name);
  options.wanted = most;
  Search search(base, options);
  SearchResult found = search.run(limits);
  std::erase_if(found.candidates, [](const Candidate& c) { return c.changes.empty(); });
  std::vector<Candidate> all = distinct(found.candidates, most);
  if (all.empty() && !found.candidates.empty()) return {found.candidates.front()};
  limits.keep_bits = true;
  const std::vector<Candidate> same = distinct(search.run(limits).candidates, 1);
  if (!same.empty() && std::ranges::none_of(all, &Candidate::same_bits)) {
    all.resize(std::min(all.size(), most - 1));
    all.push_back(same.front());
  }
  std::ranges::stable_sort(all, {}, [](const Candidate& c) { return c.time.total; });
  return all;
}

std::string size_text(int64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 1e4 ? fmt::format("{:.1f} MiB", mib) : fmt::format("{:.1f} GiB", mib / 1024);
}

std::string memory_text(const Candidate& c) {
  return size_text(c.bytes) +
         (c.host_bytes > 0 ? fmt::format(" and {} on the host", size_text(c.host_bytes)) : "");
}

std::string in_words(const Candidate& c) {
  return fmt::format("{} {}: {}, {:.2f} ms a step, {}", c.fits ? "fits with" : "still too large with",
                     fmt::join(c.changes, " "), memory_text(c), c.time.total * 1e3,
                     c.same_bits ? "the same bits" : "other bits");
}

SearchOptions search_options(const sherd::RankContext& rank) {
  sherd::Device& device = *rank.device;
  const std::optional<sherd::HardwareProfile> known =
      sherd::profile_of_device(sherd::hardware_of(device).name);
  const bool gpu = device.kind() == sherd::DeviceKind::cuda;
  SearchOptions options{.hardware = known ? *known : sherd::hardware_profile(gpu ? "h100" : "cpu"),
                        .forecast = {.device = dry_options(device)}};
  options.hardware.memory_bytes = usable_memory(rank);
  if (gpu) options.host_bytes = memory_of_host() / rank.world->size();
  return options;
}

Search::Search(TrainConfig base, SearchOptions options) : impl_(std::make_unique<Impl>()) {
  if (!base.model.empty()) {
    impl_->source = model_source(base);
    if (!base.files) {
      const auto files = std::make_shared<ModelFiles>();
      files->source = *impl_->source;
      base.files = files;
    }
  }
  const auto model = options.forecast.build(base, {}, {}, {});
  freeze_parameters(*model, base.freeze);
  impl_->count = count_parameters(base, *model);
  impl_->base = std::move(base);
  impl_->options = std::move(options);
}
Search::~Search() = default;

SearchResult Search::run(const Constraints& constraints, int64_t most_work) {
  return impl_->search(constraints, most_work > 0 ? most_work : impl_->options.most_work, false);
}
SearchResult Search::enumerate(const Constraints& constraints) { return impl_->search(constraints, 0, true); }

}  // namespace train_gpt
