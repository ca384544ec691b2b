// Newton-Schulz as one CUDA graph. Runs on a real GPU too.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sherd/kernels/device/cuda/runtime.h>

#include "../kernels/lab.h"

namespace sherd::test {
namespace {

/// What `issue` puts on the lab's stream, captured.
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

}  // namespace
}  // namespace sherd::test
