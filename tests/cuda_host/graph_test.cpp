// Newton-Schulz and sorts as CUDA graphs. Runs on a real GPU too.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sherd/kernels/device/cuda/runtime.h>
#include <sherd/nn/ops.h>

#include "../kernels/lab.h"

#ifdef TEST_CUDA_EMULATED
#include <cuda_host/fake.h>
#endif

namespace sherd::test {
namespace {

/// Captured work that `issue` puts on the lab's stream.
class CapturedWork {
 public:
  template <class Issue>
  CapturedWork(Lab& lab, Issue issue) : lab_(lab) {
    lab.s.synchronize();
    lab.s.submit("begin", [](ExecutionContext& context) {
      cuda::check(cudaStreamBeginCapture(cuda::stream_of(context), cudaStreamCaptureModeThreadLocal),
                  "begin of capture");
    });
    issue();
    lab.s.submit("end", [this](ExecutionContext& context) {
      cudaGraph_t graph = nullptr;
      cuda::check(cudaStreamEndCapture(cuda::stream_of(context), &graph), "end of capture");
      cuda::check(cudaGraphInstantiate(&work_, graph, 0), "graph");
      cuda::check(cudaGraphDestroy(graph), "graph");
    });
    lab.s.synchronize();
  }
  ~CapturedWork() {
    lab_.s.synchronize();
    cudaGraphExecDestroy(work_);
  }
  CapturedWork(const CapturedWork&) = delete;
  CapturedWork& operator=(const CapturedWork&) = delete;

  void launch() {
    lab_.s.submit("launch", [work = work_](ExecutionContext& context) {
      cuda::check(cudaGraphLaunch(work, cuda::stream_of(context)), "launch of a graph");
    });
  }

 private:
  Lab& lab_;
  cudaGraphExec_t work_ = nullptr;
};

TEST(NewtonSchulzGraph, HasTheBitsOfSeparateLaunchesForWhateverItsInputHolds) {
  for (const IterationForm form : {IterationForm::standard, IterationForm::gram})
    for (const DType working : {DType::f32, DType::bf16, DType::f16})
      for (auto [batch, rows, cols] :
           std::initializer_list<std::array<int64_t, 3>>{{1, 24, 40}, {3, 64, 16}, {2, 33, 33}}) {
        if (form == IterationForm::gram && working == DType::bf16) continue;  // refused
        Lab lab;
        OrthogonalizeOptions options{.form = form, .working = working};
        if (form == IterationForm::gram) options.restarts = {2};
        const Tensor in = lab.random({batch, rows, cols}, 1), out = lab.empty({batch, rows, cols}),
                     status = lab.empty({batch}, DType::i32);
        const auto separately = [&](const Tensor& x) {
          ops::orthogonalize(lab.s, out, x, status, options);
          return lab.floats(out);
        };
        const Floats first = separately(in);  // makes its scratch memory and finds its algorithms
        CapturedWork graph(lab, [&] { ops::orthogonalize(lab.s, out, in, status, options); });
        const Tensor other = lab.random({batch, rows, cols}, 2);
        const Floats second = separately(other);
        ops::fill(lab.s, out, NAN);
        graph.launch();
        EXPECT_EQ(bits(lab.floats(out)), bits(first));
        ops::copy(lab.s, in, other);
        graph.launch();
        EXPECT_EQ(bits(lab.floats(out)), bits(second));
      }
}

/// Results of sort_by_expert() and embedding_backward() for `indices`.
struct Sorts {
  Sorts(Lab& lab, int64_t count, int64_t rows)
      : s(lab.s),
        order(lab.empty({3, count}, DType::i32)),
        counts(lab.empty({rows}, DType::i32)),
        dtable(lab.empty({rows, 8})),
        dout(lab.random({count, 8}, 1)) {}
  void issue(const Tensor& indices) {
    ops::sort_by_expert(s, order.rows(0, 1), order.rows(1, 2), counts, indices);
    ops::fill(s, dtable, 0);
    ops::embedding_backward(s, dtable, {}, dout, indices);
  }
  std::vector<std::vector<int32_t>> integers() {
    std::vector<std::vector<int32_t>> all;
    for (const Tensor& t : {order.rows(0, 2), counts}) {
      all.emplace_back(static_cast<size_t>(t.numel()));
      ops::copy_to_host(s, all.back().data(), t);
    }
    return all;
  }
  Stream& s;
  Tensor order, counts, dtable, dout;
};

TEST(SortGraph, HasTheBitsOfSeparateLaunchesForWhateverItsInputHolds) {
  constexpr int64_t kRows = 300, kCount = 5000;
  Lab lab;
  Sorts sorts(lab, kCount, kRows);
  const auto indices = [&](unsigned seed) {
    std::mt19937 engine(seed);
    std::vector<int32_t> v(kCount);
    for (int32_t& i : v) i = static_cast<int32_t>(engine() % kRows);
    return lab.ints({10, kCount / 10}, v);
  };
  const Tensor in = indices(1), other = indices(2);
  sorts.issue(other);  // makes its scratch memory
  const auto integers = sorts.integers();
  const Floats dtable = lab.floats(sorts.dtable);
#ifdef TEST_CUDA_EMULATED
  cuda_host::reset_calls();
#endif
  CapturedWork graph(lab, [&] { sorts.issue(in); });
#ifdef TEST_CUDA_EMULATED
  EXPECT_EQ(cuda_host::calls()["cub::DeviceRadixSort::SortPairs"],
            6);                                // of each sort two ask for its storage
  EXPECT_EQ(cuda_host::calls()["thrust"], 3);  // pairs of each sort; positions and counts of experts
  EXPECT_EQ(cuda_host::calls()["cudaMalloc"], 0);
#endif
  sorts.issue(in);
  ops::copy(lab.s, in, other);
  graph.launch();
  EXPECT_EQ(sorts.integers(), integers);
  EXPECT_EQ(bits(lab.floats(sorts.dtable)), bits(dtable));
}

}  // namespace
}  // namespace sherd::test
