// The mixture of experts against a plain host implementation in double, and its finite differences.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <mutex>

#include <sherd/comm/launcher.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/fsdp/weights_change.h>
#include <sherd/kernels/ops.h>
#include <sherd/kernels/random/random.h>
#include <sherd/nn/elementwise.h>
#include <sherd/nn/models/detail/mixture.h>

namespace train_gpt {
namespace {

using namespace sherd;
using Doubles = std::vector<double>;

constexpr int64_t kDim = 6, kHidden = 4 * kDim, kExperts = 4;

// In [-1, 1), a pure function of its arguments and exact in f32.
double noise(const std::string& name, int64_t i) {
  const auto words = philox4x32({static_cast<uint32_t>(i), 0, 0, 0},
                                {static_cast<uint32_t>(hash64(7, name)), static_cast<uint32_t>(i >> 32)});
  return static_cast<float>(words[0] >> 8) * 0x1p-23 - 1;
}

struct Setting {
  const char* name;
  int ranks = 1, parts = 1;
  int64_t top_k = 2;
  Strategy strategy = Strategy::optim_grads_params;
  std::vector<int64_t> rows = {5};  // of each rank, repeated
  double skew = 0;                  // added to every row's logits of expert 0 and (half of it) of expert 1
  float balance = 0;
  int microbatches = 1;
  friend void PrintTo(const Setting& s, std::ostream* out) { *out << s.name; }

  int64_t rows_of(int rank) const { return rows[static_cast<size_t>(rank) % rows.size()]; }
};

// The model and its batch, whole and in double.
struct Host {
  explicit Host(const Setting& s) : setting(s) {
    add("router.weight", kExperts * kDim, 1);
    add("experts.fc.weight", kExperts * kHidden * kDim, 0.6);
    add("experts.fc.bias", kExperts * kHidden, 0.5);
    add("experts.out.weight", kExperts * kDim * kHidden, 0.3);
    add("experts.out.bias", kExperts * kDim, 0.5);
    // The last input is 1 in every row, so that its router weights are the experts' offsets.
    auto& router = weights["router.weight"];
    for (size_t e = 0; e < kExperts; ++e)
      router[e * kDim + kDim - 1] = e == 0 ? s.skew : e == 1 ? s.skew / 2 : 0;
    for (int r = 0; r < s.ranks; ++r)
      for (int m = 0; m < s.microbatches; ++m) {
        const std::string name = std::to_string(r) + "/" + std::to_string(m);
        Doubles x, dy;
        for (int64_t i = 0; i < s.rows_of(r) * kDim; ++i) {
          x.push_back(i % kDim == kDim - 1 ? 1 : noise("x" + name, i));
          dy.push_back(noise("dy" + name, i));
        }
        xs.push_back(x);
        dys.push_back(dy);
      }
  }
  void add(const std::string& name, int64_t count, double scale) {
    for (int64_t i = 0; i < count; ++i) weights[name].push_back(static_cast<float>(scale * noise(name, i)));
  }
  size_t batch(int rank, int microbatch) const {
    return static_cast<size_t>(rank * setting.microbatches + microbatch);
  }

  static double gelu(double v) {
    return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
  }
  static double dense(const Doubles& w, const Doubles& b, size_t row, const double* in, size_t cols) {
    double sum = b[row];
    for (size_t c = 0; c < cols; ++c) sum += w[row * cols + c] * in[c];
    return sum;
  }

  struct Call {
    Doubles y, share, mean;  // outputs; by expert: share of the choices, mean probability
  };
  Call forward(const Doubles& x) const {
    const size_t rows = x.size() / kDim;
    Call call{Doubles(x.size(), 0.0), Doubles(kExperts, 0.0), Doubles(kExperts, 0.0)};
    auto& [y, share, mean] = call;
    for (size_t r = 0; r < rows; ++r) {
      const double* row = &x[r * kDim];
      Doubles p(kExperts);
      double total = 0;
      for (size_t e = 0; e < kExperts; ++e) {
        double logit = 0;
        for (size_t c = 0; c < kDim; ++c) logit += weights.at("router.weight")[e * kDim + c] * row[c];
        total += p[e] = std::exp(logit);
      }
      for (size_t e = 0; e < kExperts; ++e) mean[e] += p[e] / total / static_cast<double>(rows);
      std::vector<size_t> best = {0, 1, 2, 3};
      std::stable_sort(best.begin(), best.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
      const double chosen = setting.top_k == 1 ? total : p[best[0]] + p[best[1]];
      for (size_t i = 0; i < static_cast<size_t>(setting.top_k); ++i) {
        const size_t e = best[i];
        share[e] += 1 / static_cast<double>(rows);
        Doubles a(kHidden);
        for (size_t h = 0; h < kHidden; ++h)
          a[h] = gelu(dense(weights.at("experts.fc.weight"), weights.at("experts.fc.bias"), e * kHidden + h,
                            row, kDim));
        for (size_t c = 0; c < kDim; ++c)
          y[r * kDim + c] += p[e] / chosen *
                             dense(weights.at("experts.out.weight"), weights.at("experts.out.bias"),
                                   e * kDim + c, a.data(), kHidden);
      }
    }
    return call;
  }
  /// Mean number of a row's choices that fell on each expert, in this call and in those of the other ranks beside it.
  Doubles share_everywhere(size_t call) const {
    Doubles share(kExperts, 0.0);
    for (int r = 0; r < setting.ranks; ++r) {
      const size_t microbatch = call % static_cast<size_t>(setting.microbatches);
      const Call c = forward(xs[batch(r, static_cast<int>(microbatch))]);
      for (size_t e = 0; e < kExperts; ++e) share[e] += c.share[e] / setting.ranks;
    }
    return share;
  }

  /// Returns the objective of one call on one rank, which its backward differentiates.
  double objective(size_t call) const {
    double sum = 0;
    const Call c = forward(xs[call]);
    for (size_t i = 0; i < c.y.size(); ++i) sum += c.y[i] * dys[call][i];
    if (setting.balance == 0) return sum;
    const Doubles share = share_everywhere(call);
    for (size_t e = 0; e < kExperts; ++e)  // the loss scale is 1 / rows
      sum += static_cast<double>(setting.balance) * kExperts * share[e] * c.mean[e];
    return sum;
  }
  double mean_objective() const {
    double sum = 0;
    for (size_t i = 0; i < xs.size(); ++i) sum += objective(i);
    return sum / setting.ranks;
  }
  /// Of one element in `every`; 0 of the others.
  static Doubles differences(Doubles& at, const std::function<double()>& f, size_t every = 1) {
    constexpr double h = 1e-5;
    Doubles d;
    for (double& v : at) {
      if (d.size() % every != 0) {
        d.push_back(0);
        continue;
      }
      const double kept = v;
      v = kept + h;
      const double above = f();
      v = kept - h;
      d.push_back((above - f()) / (2 * h));
      v = kept;
    }
    return d;
  }

  Setting setting;
  std::map<std::string, Doubles> weights;
  std::vector<Doubles> xs, dys;  // by call
};

// The unit of the dense parameters: here the router alone.
class Net : public nn::Module<Net> {
 public:
  Net(const nn::MixtureDescription& mixture, const nn::ExpertParallel& parallel)
      : moe({.model = {.family = nn::ModelFamily::byte_gpt, .dim = kDim, .layers = 1, .mixture = mixture}},
            parallel) {
    child("moe", moe);
  }
  nn::Var forward(const nn::Var& x, float loss_scale) {
    return moe(nn::SequenceRows{.count = x.size(0)}, nn::scale(x, 0), x, loss_scale);
  }
  nn::detail::Mixture moe;
};

struct Found {
  std::vector<std::vector<float>> ys, dxs;        // by call
  std::map<std::string, Doubles> gradients;       // whole
  std::map<std::string, std::vector<int>> times;  // how many ranks gave each element
  CommCounts comm;                                // of rank 0
};

Tensor upload(Stream& s, const Doubles& values, DType dtype) {
  const std::vector<float> floats(values.begin(), values.end());
  const Shape shape = {static_cast<int64_t>(values.size()) / kDim, kDim};
  const Tensor f = Tensor::empty(s.device(), shape, DType::f32, "test");
  const Tensor t = Tensor::empty(s.device(), shape, dtype, "test");
  ops::copy_from_host(s, f, floats.data(), f.nbytes());
  ops::cast(s, t, f);
  return t;
}

Found run(const Host& host, DType dtype = DType::f32) {
  const Setting& c = host.setting;
  Found found;
  found.ys.resize(host.xs.size());
  found.dxs.resize(host.xs.size());
  for (auto& [name, w] : host.weights) {
    found.gradients[name].assign(w.size(), 0);
    found.times[name].assign(w.size(), 0);
  }
  std::mutex mutex;
  launch(c.ranks, {.device = {.kernels = parse_cpu_kernels(TEST_KERNELS)}}, [&](RankContext& rank) {
    const int me = rank.world->rank();
    const DeviceMesh mesh(rank.world, {{"shard", c.ranks}});
    const DeviceMesh expert_mesh(rank.world, {{"expert_shard", c.ranks / c.parts}, {"expert", c.parts}});
    const int index = expert_mesh.coordinate("expert");
    Net net({.experts = kExperts,
             .top_k = c.top_k,
             .hidden = kHidden,
             .normalise = c.top_k > 1,
             .balance = c.balance},
            nn::ExpertParallel::of(expert_mesh));
    FullyShardOptions o;
    o.strategy = c.strategy;
    o.compute_dtype = dtype;
    FullyShardOptions expert_options = o;
    expert_options.shard_dim = "expert_shard";
    expert_options.gradient_ranks = c.ranks;
    fully_shard(net.moe.experts(), expert_mesh, expert_options);
    fully_shard(net, mesh, o);
    ShardRuntime& runtime = runtime_of(net);
    Stream& s = rank.device->compute();

    // Every element's place in the whole parameter.
    const auto first = [&](const std::string& name, const Parameter& p) {
      return p.shard_range().begin.value + (name == "router.weight" ? 0 : index * p.numel());
    };
    WeightsChange change(runtime);
    for (auto& [full, p] : net.named_parameters()) {
      const std::string name = full.substr(4);  // "moe."
      const auto begin = host.weights.at(name).begin() + first(name, p);
      const std::vector<float> mine(begin, begin + p.shard_range().size());
      ops::copy_from_host(s, p.shard(), mine.data(), p.shard().nbytes());
    }
    change.end();

    nn::Tape tape;
    const CommCounts before = rank.world->counts();
    for (int m = 0; m < c.microbatches; ++m) {
      const size_t call = host.batch(me, m);
      runtime.set_last_microbatch(m + 1 == c.microbatches);
      const nn::Var x = tape.leaf(upload(s, host.xs[call], dtype));
      const nn::Var y = net(x, 1.0f / static_cast<float>(std::max<int64_t>(1, c.rows_of(me))));
      found.ys[call] = ops::to_floats(s, y.value());
      tape.backward(y, upload(s, host.dys[call], dtype));
      found.dxs[call] = ops::to_floats(s, tape.gradient(x));
    }
    const CommCounts after = rank.world->counts();
    runtime.wait_gradients();
    for (auto& [full, p] : net.named_parameters()) {
      const std::string name = full.substr(4);
      const std::vector<float> g = ops::to_floats(s, p.grad_shard());
      const std::lock_guard lock(mutex);
      for (size_t i = 0; i < g.size(); ++i) {
        const size_t at = static_cast<size_t>(first(name, p)) + i;
        found.gradients[name][at] = g[i];
        ++found.times[name][at];
      }
    }
    if (me != 0) return;
    for (auto& [op, count] : after) {
      const auto was = before.find(op);
      found.comm[op].calls = count.calls - (was == before.end() ? 0 : was->second.calls);
    }
  });
  return found;
}

template <class V>
void expect_near(const V& got, const Doubles& want, double tolerance, const std::string& what,
                 size_t every = 1) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); i += every)
    if (!(std::abs(got[i] - want[i]) <= tolerance * (1 + std::abs(want[i]))))
      FAIL() << what << ": element " << i << " is " << got[i] << ", expected " << want[i];
}

class Moe : public ::testing::TestWithParam<Setting> {};

TEST_P(Moe, AgreesWithThePlainComputationAndItsDifferences) {
  Host host(GetParam());
  const Found found = run(host);
  for (size_t call = 0; call < host.xs.size(); ++call) {
    expect_near(found.ys[call], host.forward(host.xs[call]).y, 2e-6,
                "output of call " + std::to_string(call));
    const Doubles dx = Host::differences(host.xs[call], [&] { return host.objective(call); });
    expect_near(found.dxs[call], dx, 1e-5, "input gradient of call " + std::to_string(call));
  }
  for (auto& [name, w] : host.weights) {
    for (int times : found.times.at(name)) ASSERT_GE(times, 1) << name;
    const size_t every = w.size() > 100 ? 5 : 1;  // of rows of 6 and columns of 24 all
    const auto objective = [&] { return host.mean_objective(); };
    expect_near(found.gradients.at(name), Host::differences(w, objective, every), 1e-5, name, every);
  }
  const int64_t calls = GetParam().parts == 1 ? 0 : 5 * GetParam().microbatches;
  const auto exchanges = found.comm.find("all_to_all_v");
  EXPECT_EQ(exchanges == found.comm.end() ? 0 : exchanges->second.calls, calls)
      << "counts, rows there and back; gradients there and back";
}

const std::vector<Setting> kSettings = {
    {.name = "OneRankTop1", .top_k = 1, .balance = 0.5f},
    {.name = "OneRankTop2", .balance = 0.5f},
    {.name = "FourRanksOnePart", .ranks = 4},
    {.name = "TwoPartsTop1", .ranks = 4, .parts = 2, .top_k = 1, .balance = 0.5f},
    {.name = "TwoPartsTop2", .ranks = 4, .parts = 2, .balance = 0.5f},
    {.name = "TwoPartsReplicated", .ranks = 4, .parts = 2, .strategy = Strategy::no_shard},
    {.name = "TwoPartsOptim", .ranks = 4, .parts = 2, .strategy = Strategy::optim},
    {.name = "TwoPartsGradients",
     .ranks = 4,
     .parts = 2,
     .strategy = Strategy::optim_grads,
     .microbatches = 3},
    {.name = "TwoPartsAccumulated", .ranks = 4, .parts = 2, .balance = 0.5f, .microbatches = 2},
    {.name = "FourParts", .ranks = 4, .parts = 4},
    {.name = "FourPartsTop1", .ranks = 4, .parts = 4, .top_k = 1, .strategy = Strategy::no_shard},
    {.name = "UnequalRows", .ranks = 4, .parts = 2, .rows = {3, 0, 7, 1}},
    {.name = "NoRowsButOnOneRank", .ranks = 4, .parts = 4, .rows = {0, 0, 2, 0}},
    {.name = "AllToTheFirstPart", .ranks = 4, .parts = 2, .rows = {4, 2}, .skew = 60},
    {.name = "AllToOneExpert", .ranks = 4, .parts = 4, .top_k = 1, .rows = {4, 2}, .skew = 60},
    {.name = "ThreeSharesOfTwoParts", .ranks = 6, .parts = 2, .rows = {2}},
};

INSTANTIATE_TEST_SUITE_P(Settings, Moe, ::testing::ValuesIn(kSettings),
                         [](const auto& setting) { return std::string(setting.param.name); });

TEST(MoeBf16, AgreesToItsPrecision) {
  Host host({.name = "bf16", .ranks = 4, .parts = 2});
  const Found found = run(host, DType::bf16);
  // A row whose second and third probabilities are close may choose another expert: most rows must agree.
  size_t wrong = 0, all = 0;
  for (size_t call = 0; call < host.xs.size(); ++call) {
    const Doubles want = host.forward(host.xs[call]).y;
    for (size_t i = 0; i < want.size(); ++i, ++all) wrong += std::abs(found.ys[call][i] - want[i]) > 0.05;
  }
  EXPECT_LE(wrong, all / 10);
}

TEST(Moe, EvaluationKeepsNothing) {
  launch(2, {.device = {.kernels = parse_cpu_kernels(TEST_KERNELS)}}, [](RankContext& rank) {
    const DeviceMesh mesh(rank.world, {{"expert_shard", 1}, {"expert", 2}});
    Net net({.experts = kExperts, .top_k = 2, .hidden = kHidden}, nn::ExpertParallel::of(mesh));
    FullyShardOptions o;
    o.shard_dim = "expert_shard";
    o.gradient_ranks = 2;
    fully_shard(net.moe.experts(), mesh, o);
    fully_shard(net, DeviceMesh(rank.world, {{"shard", 2}}), {});
    net.set_training(false);
    Stream& s = rank.device->compute();
    nn::Tape tape;
    int64_t live = 0;
    for (int i = 0; i < 3; ++i) {
      ops::to_floats(s, net(tape.input(upload(s, Doubles(8 * kDim, 0.25), DType::f32)), 1.0f).value());
      EXPECT_EQ(tape.size(), 0);
      if (i > 0) {
        EXPECT_EQ(rank.device->allocator().live_bytes(), live);
      }
      live = rank.device->allocator().live_bytes();
    }
  });
}

}  // namespace
}  // namespace train_gpt
