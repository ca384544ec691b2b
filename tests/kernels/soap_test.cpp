// The step of KL-SOAP: beside NumPy in double (tests/golden/make_soap.py), and the kernels beside each other.
#include <sherd/kernels/soap/reference/step.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <numeric>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include <sherd/kernels/soap/detail/state_tensors.h>

#include "lab.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

using json = nlohmann::json;

/// Memory of a state, and pointers into it.
template <class T>
struct OwnedSoapState {
  std::vector<T> memory;
  SoapStateOf<T> state;
  OwnedSoapState(int64_t m, int64_t n, int64_t max_dim)
      : memory(static_cast<size_t>(soap_state_elements(m, n, m <= max_dim, n <= max_dim))),
        state(soap_layout(memory.data(), m, n, m <= max_dim, n <= max_dim)) {}
};

/// values() of make_soap.py.
std::vector<double> soap_values(int64_t count, int64_t salt) {
  std::vector<double> v;
  for (int64_t i = 0; i < count; ++i) v.push_back(static_cast<double>((i * 73 + salt * 31) % 127 - 63) / 32);
  return v;
}

/// Largest difference over the largest element.
double relative_difference(const double* got, const json& want) {
  double difference = 0, largest = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(want[i].get<double>()));
    difference = std::max(difference, std::abs(got[i] - want[i].get<double>()));
  }
  return difference / largest;
}

void expect_golden_run(const json& file, const json& c, const SoapRoutines& routines) {
  const int64_t m = c["rows"], n = c["cols"];
  const std::string what = std::to_string(m) + " x " + std::to_string(n);
  const int64_t max_dim = c.contains("left") && c.contains("right") ? 8 : c.size() == 5 ? 2 : 6;
  OwnedSoapState<double> owned(m, n, max_dim);
  const SoapConstants constants{.beta1 = file["beta1"],
                                .beta2 = file["beta2"],
                                .shampoo_beta = file["shampoo_beta"],
                                .eps = file["eps"]};
  const double rate = file["rate"], decay = 1 - rate * file["decay"].get<double>();
  std::vector<double> w = soap_values(m * n, 1), out(w.size()), g(w.size());
  std::vector<double> work(static_cast<size_t>(soap_work_doubles(m, n)));
  const std::vector<double> target = soap_values(m * n, 2);
  const std::vector<int> stops = file["steps"];
  size_t stop = 0;
  for (int t = 1; t <= stops.back(); ++t) {
    const std::vector<double> noise = soap_values(m * n, 3 * t);
    for (size_t i = 0; i < w.size(); ++i) g[i] = w[i] - target[i] + 0.5 * noise[i];
    soap_matrix(m, n, g.data(), out.data(), owned.state, constants, routines, work.data());
    for (size_t i = 0; i < w.size(); ++i) w[i] = decay * w[i] - rate * out[i];
    if (t == stops[stop]) {
      EXPECT_LE(relative_difference(w.data(), c["weights"][stop++]), 1e-6) << what << " step " << t;
    }
  }
  EXPECT_LE(relative_difference(owned.state.exp_avg, c["moment"]), 1e-6) << what;
  EXPECT_LE(relative_difference(owned.state.exp_avg_sq, c["squares"]), 1e-6) << what;
  for (const auto& [side, factor, values] : {std::tuple("left", owned.state.left, owned.state.left_values),
                                             {"right", owned.state.right, owned.state.right_values}}) {
    ASSERT_EQ(c.contains(side), factor != nullptr) << what << " " << side;
    if (!factor) continue;
    EXPECT_LE(relative_difference(factor, c[side]["factor"]), 1e-6) << what << " " << side;
    EXPECT_LE(relative_difference(values, c[side]["values"]), 1e-6) << what << " " << side;
  }
}

// In double from end to end: 50 steps of rounding errors of 1e-16, which the small eigenvalues enlarge.
TEST(Soap, FiftyStepsAreThoseOfNumPy) {
  const json file = json::parse(std::ifstream(std::string(GOLDEN_FOLDER) + "/soap.json"));
  for (const json& c : file["cases"]) {
    expect_golden_run(file, c, reference::soap_routines());
    expect_golden_run(file, c, cpu::soap_routines());
  }
}

TEST(Soap, RoutinesGiveOrthonormalEigenvectors) {
  for (const int64_t n : {1, 2, 7, 40, 100}) {
    const Floats random = normal(n * n, 5);
    std::vector<double> symmetric(random.size()), work(static_cast<size_t>(soap_routine_doubles(n)));
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j)
        symmetric[static_cast<size_t>(i * n + j)] =
            random[static_cast<size_t>(i * n + j)] + random[static_cast<size_t>(j * n + i)];
    for (const SoapRoutines* r : {&reference::soap_routines(), &cpu::soap_routines()}) {
      std::vector<double> b = symmetric, values(static_cast<size_t>(n)), bb(b.size()), ab(b.size()),
                          q = symmetric;
      r->eigenvectors(n, b.data(), values.data(), work.data());
      r->product(false, true, n, n, n, b.data(), b.data(), bb.data());
      r->product(false, false, n, n, n, b.data(), symmetric.data(), ab.data());
      r->orthonormal_rows(n, q.data(), work.data());
      std::vector<double> qq(b.size()), triangle(b.size());
      r->product(false, true, n, n, n, q.data(), q.data(), qq.data());
      r->product(false, true, n, n, n, symmetric.data(), q.data(), triangle.data());
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j) {
          const auto at = static_cast<size_t>(i * n + j);
          const double one = i == j ? 1 : 0;
          EXPECT_NEAR(bb[at], one, 1e-12);
          EXPECT_NEAR(ab[at], values[static_cast<size_t>(i)] * b[at], 1e-11);
          EXPECT_NEAR(qq[at], one, 1e-12);
          // The matrix is R^T Q^T: R^T is lower triangular, its diagonal positive or zero.
          EXPECT_NEAR(std::max(j > i ? std::abs(triangle[at]) : 0, j == i ? -triangle[at] : 0), 0, 1e-11);
        }
    }
  }
}

void on_threads(int threads, const std::function<void()>& work) {
  Lab lab("cpu", threads);
  lab.s.submit("work", [&](ExecutionContext&) { work(); });
  lab.s.synchronize();
}

// The values are multiples of 1/32, so every sum is exact.
TEST(Soap, ProductsAreThoseOfTheReferenceOnEveryNumberOfThreads) {
  for (const auto& [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                                {6, 8, 3},
                                {7, 9, 257},
                                {97, 23, 5},
                                {100, 31, 300}}) {
    const std::vector<double> a = soap_values(m * k, 1), b = soap_values(k * n, 2);
    for (const bool trans_a : {false, true}) {
      for (const bool trans_b : {false, true}) {
        std::vector<double> want(static_cast<size_t>(m * n)), got = want;
        reference::soap_routines().product(trans_a, trans_b, m, n, k, a.data(), b.data(), want.data());
        for (const int threads : {1, 3}) {
          std::fill(got.begin(), got.end(), -7);
          const auto product = cpu::soap_routines().product;
          on_threads(threads, [&, rows = m, cols = n, inner = k] {
            product(trans_a, trans_b, rows, cols, inner, a.data(), b.data(), got.data());
          });
          EXPECT_EQ(got, want) << m << " x " << n << " x " << k << ", " << threads << " threads";
        }
      }
    }
  }
}

TEST(Soap, OrthonormalRowsHaveTheSameBitsOnEveryNumberOfThreads) {
  constexpr int64_t kSide = 200;
  const Floats random = normal(kSide * kSide, 6);
  std::vector<double> work(static_cast<size_t>(soap_routine_doubles(kSide)));
  std::vector<double> one(random.begin(), random.end()), three = one;
  const auto orthonormal_rows = cpu::soap_routines().orthonormal_rows;
  on_threads(1, [&] { orthonormal_rows(kSide, one.data(), work.data()); });
  on_threads(3, [&] { orthonormal_rows(kSide, three.data(), work.data()); });
  EXPECT_EQ(one, three);
}

struct SoapRun {
  Floats out, state;
  std::vector<int32_t> statuses;
};

/// Some steps of `count` matrices, the gradients from `first` of a sequence.
SoapRun soap_steps(Lab& lab, int64_t count, int64_t m, int64_t n, int steps, const std::vector<int64_t>& skip,
                   int64_t first = 0, float poison = 0) {
  SoapRun run;
  std::vector<OwnedSoapState<float>> states;
  std::vector<SoapMatrix> matrices;
  for (int64_t i = 0; i < count; ++i) states.emplace_back(m, n, 64);
  for (int t = 0; t < steps; ++t) {
    Floats g;
    for (int64_t i = 0; i < count; ++i) {
      const Floats one = normal(m * n, static_cast<unsigned>(100 * (first + i) + t));
      g.insert(g.end(), one.begin(), one.end());
    }
    if (poison != 0) g.back() = poison;
    matrices.clear();
    for (auto& s : states) matrices.push_back({s.state, &skip[static_cast<size_t>(t)]});
    const Tensor in = lab.tensor({count, m, n}, g), out = lab.full({count, m, n}, 7),
                 status = lab.empty({count}, DType::i32);
    ops::soap_step(lab.s, out, in, status, matrices, {.eps = 1e-3});
    run.out = ops::to_floats(lab.s, out);
    run.statuses.assign(static_cast<size_t>(count), -1);
    ops::copy_to_host(lab.s, run.statuses.data(), status);
  }
  for (auto& s : states) run.state.insert(run.state.end(), s.memory.begin(), s.memory.end());
  return run;
}

TEST(Soap, AMatrixHasTheSameBitsInEveryBatchAndOnEveryNumberOfThreads) {
  const std::vector<int64_t> never(3, 0);
  for (const char* kernels : {"cpu", "reference"}) {
    Lab lab(kernels), threaded(kernels, 3);
    const SoapRun all = soap_steps(threaded, 3, 9, 6, 3, never);
    for (int64_t i = 0; i < 3; ++i) {
      const SoapRun one = soap_steps(lab, 1, 9, 6, 3, never, i);
      EXPECT_TRUE(std::equal(one.out.begin(), one.out.end(), all.out.begin() + i * 54)) << kernels;
      const auto size = static_cast<int64_t>(one.state.size());
      EXPECT_TRUE(std::equal(one.state.begin(), one.state.end(), all.state.begin() + i * size)) << kernels;
    }
  }
}

// One step from equal states, where both compute in double and round once.
TEST(Soap, CpuIsTheReferenceOnSquares) {
  const std::vector<int64_t> never(4, 0);
  Lab cpu("cpu"), reference("reference");
  const SoapRun a = soap_steps(cpu, 2, 8, 8, 4, never), b = soap_steps(reference, 2, 8, 8, 4, never);
  // Rounded states differ by 2^-24 now and then; the smallest eigenvalues enlarge that by up to 1 / eps.
  for (size_t i = 0; i < a.out.size(); ++i) EXPECT_NEAR(a.out[i], b.out[i], 0x1p-24 / 1e-3 * 4);
}

TEST(Soap, SkippedAndNonFiniteStepsLeaveTheState) {
  for (const char* kernels : {"cpu", "reference"}) {
    Lab lab(kernels);
    const SoapRun before = soap_steps(lab, 2, 5, 4, 2, {0, 0});
    const SoapRun skipped = soap_steps(lab, 2, 5, 4, 4, {0, 0, 1, 1});
    EXPECT_EQ(skipped.state, before.state) << kernels;
    EXPECT_EQ(skipped.out, Floats(40, 0)) << kernels;
    const SoapRun bad = soap_steps(lab, 1, 5, 4, 2, {0, 0}, 0, kInf);
    EXPECT_EQ(bad.statuses[0], static_cast<int32_t>(MatrixStatus::not_finite)) << kernels;
    EXPECT_EQ(bad.out, Floats(20, 0)) << kernels;
    EXPECT_EQ(bad.state, Floats(bad.state.size(), 0)) << kernels;
  }
}

TEST(Soap, WrongArgumentsAreNamed) {
  Lab lab("cpu");
  OwnedSoapState<float> owned(3, 3, 8);
  const Tensor in = lab.full({1, 3, 3}, 1), out = lab.full({1, 3, 3}, 0), status = lab.empty({1}, DType::i32);
  const auto refused = [&](std::vector<SoapMatrix> matrices, const SoapConstants& constants) {
    return message_of<Error>([&] { ops::soap_step(lab.s, out, in, status, matrices, constants); });
  };
  EXPECT_NE(refused({}, {}).find("1 matrices have 0 states"), std::string::npos);
  SoapMatrix torn{owned.state};
  torn.state.left_values = nullptr;
  EXPECT_NE(refused({torn}, {}).find("matrix 0: a state tensor is null"), std::string::npos);
  EXPECT_NE(refused({{owned.state}}, {.beta2 = 1}).find("beta2 1 must lie in [0, 1)"), std::string::npos);
  EXPECT_NE(refused({{owned.state}}, {.eps = 0}).find("eps 0 must be"), std::string::npos);
}

}  // namespace
}  // namespace sherd::test
