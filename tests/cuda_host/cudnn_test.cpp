// Attention by cuDNN: cuts, plans, and what the own kernels compute instead. Runs on a real GPU with cuDNN, too, where it
// compares cuDNN with the reference.
#include <sherd/kernels/device/cuda/queue.h>
#include <sherd/nn/kernels/attention/cuda_cudnn.h>
#include <sherd/nn/ops.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <thread>

#include "../kernels/lab.h"
#include "support/message_of.h"

#ifdef TEST_CUDA_EMULATED
#include <cuda_host/fake.h>
#endif

namespace sherd::test {
namespace {

#ifdef TEST_CUDA_EMULATED
/// Scope in which the imitated cuDNN is installed.
struct Installed {
  explicit Installed(const char* version = "91900") { setenv("SHERD_HOST_CUDNN_VERSION", version, 1); }
  ~Installed() { unsetenv("SHERD_HOST_CUDNN_VERSION"); }
};
#else
struct Installed {};
#endif

struct Case {
  int64_t batch, seq, heads, kv_heads, dim;
  DType dtype = DType::bf16;

  Shape wide() const { return {batch * seq, (heads + 2 * kv_heads) * dim}; }
  Shape narrow() const { return {batch * seq, heads * dim}; }
  Shape sums() const { return {batch, heads, seq}; }
  std::string name() const {
    return testing::PrintToString(std::array<int64_t, 5>{batch, seq, heads, kv_heads, dim});
  }
};

struct Forward {
  Floats out, lse;
};
Forward forward(Lab& lab, const Case& c, const Tensor& most = {}, const Tensor& lengths = {}) {
  const Tensor out = lab.empty(c.narrow(), c.dtype), lse = lab.empty(c.sums());
  ops::attention_forward(lab.s, out, lse, lab.random(c.wide(), 1, c.dtype), c.batch, c.heads, c.kv_heads,
                         most, 0, {}, lengths);
  return {lab.floats(out), lab.floats(lse)};
}
Floats backward(Lab& lab, const Case& c, const Forward& from) {
  const Tensor dqkv = lab.empty(c.wide(), c.dtype);
  ops::attention_backward(lab.s, dqkv, lab.random(c.narrow(), 2, c.dtype),
                          lab.tensor(c.narrow(), from.out, c.dtype), lab.tensor(c.sums(), from.lse),
                          lab.random(c.wide(), 1, c.dtype), c.batch, c.heads, c.kv_heads);
  return lab.floats(dqkv);
}

struct CudnnLab : Lab {
  explicit CudnnLab(AttentionMethod attention = AttentionMethod::automatic)
      : Lab(make_cuda_device({.label = "lab", .attention = attention})) {}
  template <class Work>
  void run(Work work) {
    s.submit("test", work);
    s.synchronize();
  }
  bool has_cudnn() {
    bool has = false;
    run([&](ExecutionContext& c) { has = cuda::queue_of(c).chip().attention != AttentionMethod::own; });
    return has;
  }
  /// dqkv of cuDNN alone; nothing where it does not compute the call.
  std::optional<Floats> cudnn_backward(const Case& c, const Forward& from, int64_t most_workspace) {
    const Tensor qkv = random(c.wide(), 1, c.dtype), dout = random(c.narrow(), 2, c.dtype),
                 out = tensor(c.narrow(), from.out, c.dtype), lse = tensor(c.sums(), from.lse),
                 dqkv = full(c.wide(), NAN, c.dtype);
    AttentionArgs a{c.batch, c.seq, c.heads, c.kv_heads, c.dim};
    a.qkv = {qkv.raw(), c.dtype};
    a.out = {out.raw(), c.dtype};
    a.lse = lse.data<float>();
    a.dout = {dout.raw(), c.dtype};
    a.dqkv = {dqkv.raw(), c.dtype};
    bool taken = false;
    run([&](ExecutionContext& context) { taken = cuda::cudnn_backward(context, a, most_workspace); });
    if (!taken) return {};
    return floats(dqkv);
  }
};

struct CudnnAttention : testing::Test {
  void SetUp() override {
    if (!lab.has_cudnn()) GTEST_SKIP() << "no cuDNN, or a build without it";
#ifdef TEST_CUDA_EMULATED
    cuda_host::reset_calls();
#endif
  }
  const Installed installed{};
  CudnnLab lab;
};

// Derived as in attention_test.cpp, with u = epsilon / 2. In grouped queries cuDNN may round each query
// head's share of dk and dv, too: u of each, which are at most 4.5 here.
double forward_tolerance() { return 4.5 / 2 * epsilon(DType::bf16); }
double backward_tolerance(const Case& c) {
  const double group = static_cast<double>(c.heads / c.kv_heads);
  return (std::sqrt(group) * 7 + (group > 1 ? group * 4.5 : 0)) / 2 * epsilon(DType::bf16);
}

TEST_F(CudnnAttention, MatchesTheReference) {
  std::vector<Case> cases{
      {1, 64, 1, 1, 64}, {2, 128, 2, 2, 128}, {2, 200, 4, 2, 64}, {1, 161, 3, 1, 128}, {2, 40, 2, 1, 8}};
  if (!kEmulated) cases.insert(cases.end(), {{3, 700, 6, 2, 64}, {2, 1024, 8, 2, 128}});
  for (const Case& c : cases) {
    Lab reference("reference");
    const Forward want = forward(reference, c), got = forward(lab, c);
    expect_close(got.out, want.out, forward_tolerance(), c.name());
    expect_close(got.lse, want.lse, forward_tolerance(), c.name());
    const auto gradient = lab.cudnn_backward(c, want, cuda::kCudnnWorkspace);
    ASSERT_TRUE(gradient) << c.name();
    expect_close(*gradient, backward(reference, c, want), backward_tolerance(c), c.name());
    EXPECT_EQ(bits(backward(lab, c, want)), bits(*gradient)) << c.name() << ": another run";
  }
}

// A maximum is as exact as lse, which contains it.
TEST_F(CudnnAttention, RaisesTheLargestLogits) {
  for (const Case& c :
       std::vector<Case>{{1, 64, 1, 1, 64}, {2, 200, 4, 2, 64}, {3, 161, 3, 1, 128}, {1, 300, 2, 2, 8}}) {
    Lab reference("reference");
    const Tensor want_most = reference.full({c.heads}, -kInf), most = lab.full({c.heads}, -kInf);
    const Forward want = forward(reference, c, want_most), got = forward(lab, c, most);
    expect_close(got.out, want.out, forward_tolerance(), c.name());
    expect_close(got.lse, want.lse, forward_tolerance(), c.name());
    expect_close(lab.floats(most), reference.floats(want_most), forward_tolerance(), c.name());
    // Padding, which is the last sequence and a part of the first one.
    std::vector<int32_t> lengths(static_cast<size_t>(c.batch), static_cast<int32_t>(c.seq));
    lengths.front() = static_cast<int32_t>(c.seq / 3);
    if (c.batch > 1) lengths.back() = 0;
    const Tensor want_less = reference.full({c.heads}, -kInf), less = lab.full({c.heads}, -kInf);
    forward(reference, c, want_less, reference.ints({c.batch}, lengths));
    EXPECT_EQ(bits(forward(lab, c, less, lab.ints({c.batch}, lengths)).lse), bits(got.lse)) << c.name();
    expect_close(lab.floats(less), reference.floats(want_less), forward_tolerance(), c.name());
    const Tensor larger = lab.full({c.heads}, 1e6);
    forward(lab, c, larger);
    EXPECT_EQ(lab.floats(larger), Floats(static_cast<size_t>(c.heads), 1e6f)) << c.name();
  }
}

// Limits of the workspace from all to what one head exceeds.
TEST_F(CudnnAttention, AnyCutHasTheSameBits) {
  for (const Case& c : std::vector<Case>{{3, 72, 4, 2, 16}, {1, 128, 6, 3, 64}, {5, 200, 2, 1, 128}}) {
    const Forward from = forward(lab, c);
    const auto whole = lab.cudnn_backward(c, from, cuda::kCudnnWorkspace);
    ASSERT_TRUE(whole) << c.name();
    for (int64_t most = int64_t{16} << 20; most > 0; most = most * 2 / 3) {
      const auto cut = lab.cudnn_backward(c, from, most);
      if (!cut) break;
      EXPECT_EQ(bits(*cut), bits(*whole)) << c.name() << " within " << most;
    }
  }
}

#ifdef TEST_CUDA_EMULATED

using Calls = std::map<std::string, int64_t>;
Calls cudnn_calls() {
  Calls some;
  for (const char* name : {"cudnnCreate", "cudnn plan", "cudnn run"}) some[name] = cuda_host::calls()[name];
  return some;
}
Calls calls(int64_t handles, int64_t plans, int64_t runs) {
  return {{"cudnnCreate", handles}, {"cudnn plan", plans}, {"cudnn run", runs}};
}

const Case kCase{2, 40, 2, 2, 16};

TEST_F(CudnnAttention, MakesOnePlanForAShape) {
  for (int turn = 0; turn < 2; ++turn) backward(lab, kCase, forward(lab, kCase));
  EXPECT_EQ(cudnn_calls(), calls(1, 2, 4));
  forward(lab, {1, 40, 2, 2, 16});
  EXPECT_EQ(cudnn_calls(), calls(1, 3, 5));
}

// 4 query heads of 128 x 128 values in 2 bytes: 128 KiB for an item of the batch.
TEST_F(CudnnAttention, IsCutByItemsAndThenByKeyHeads) {
  const Case c{5, 128, 4, 2, 8};
  const Forward from = forward(lab, c);
  const auto runs = [&](int64_t kib) {
    cuda_host::reset_calls();
    const bool taken = lab.cudnn_backward(c, from, kib << 10).has_value();
    return taken ? cudnn_calls()["cudnn run"] : 0;
  };
  EXPECT_EQ(runs(5 * 128), 1);
  EXPECT_EQ(runs(5 * 128 - 1), 2);  // 3 and 2
  EXPECT_EQ(runs(2 * 128), 3);      // 2, 2 and 1
  EXPECT_EQ(runs(128), 5);
  EXPECT_EQ(runs(127), 10);
  EXPECT_EQ(runs(64), 10);
  EXPECT_EQ(runs(63), 0);  // a key head needs more
  EXPECT_EQ(cudnn_calls()["cudnn plan"], 0);
}

TEST_F(CudnnAttention, APartsLseMustBeAligned) {
  const Case c{2, 129, 1, 1, 8};
  const Forward from = forward(lab, c);
  EXPECT_TRUE(lab.cudnn_backward(c, from, cuda::kCudnnWorkspace));
  EXPECT_FALSE(lab.cudnn_backward(c, from, int64_t{192} * 256 * 2));
}

TEST_F(CudnnAttention, TheWorkspaceIsScratch) {
  const Case c{2, 128, 2, 2, 8};
  const auto scratch = [&] { return lab.device->allocator().live_bytes(MemoryClass::scratch); };
  const Forward from = forward(lab, c);
  const int64_t before = scratch();
  ASSERT_TRUE(lab.cudnn_backward(c, from, 64 << 10));  // an item's
  EXPECT_GE(scratch(), 64 << 10);
  EXPECT_LT(scratch(), 128 << 10);
  EXPECT_LT(before, 64 << 10);
}

TEST_F(CudnnAttention, SherdsKernelsComputeWhatItDoesNot) {
  CudnnLab own(AttentionMethod::own);
  for (const Case& c :
       std::vector<Case>{{1, 20, 2, 2, 16, DType::f32}, {1, 20, 2, 1, 20}, {1, 20, 1, 1, 136}}) {
    const Forward want = forward(own, c), got = forward(lab, c);
    EXPECT_EQ(bits(got.out), bits(want.out)) << c.name();
    EXPECT_EQ(bits(got.lse), bits(want.lse)) << c.name();
    EXPECT_EQ(bits(backward(lab, c, want)), bits(backward(own, c, want))) << c.name();
  }
  const Tensor qkv = lab.random(kCase.wide(), 1, DType::bf16), out = lab.empty(kCase.narrow(), DType::bf16),
               lse = lab.empty(kCase.sums());
  ops::attention_forward(lab.s, out, lse, lab.shifted(qkv), kCase.batch, kCase.heads, kCase.kv_heads);
  const Tensor starts = lab.ints({kCase.batch, kCase.seq}, std::vector<int32_t>(80, 0)),
               dqkv = lab.empty(kCase.wide(), DType::bf16);
  for (const auto& [window, first] : {std::pair(int64_t{5}, Tensor()), std::pair(int64_t{0}, starts)}) {
    ops::attention_forward(lab.s, out, lse, qkv, kCase.batch, kCase.heads, kCase.kv_heads, {}, window, first);
    ops::attention_backward(lab.s, dqkv, out, out, lse, qkv, kCase.batch, kCase.heads, kCase.kv_heads, window,
                            first);
  }
  lab.s.synchronize();
  EXPECT_EQ(cudnn_calls()["cudnn plan"], 0);
}

TEST_F(CudnnAttention, ComputesTheLargestLogitsSince9_14) {
  const auto plans = [&](const char* version) {
    const Installed other(version);
    CudnnLab with;
    const Tensor most = with.full({kCase.heads}, -kInf);
    cuda_host::reset_calls();
    forward(with, kCase, most);
    EXPECT_GT(with.floats(most)[0], -kInf);
    return cudnn_calls()["cudnn plan"];
  };
  EXPECT_EQ(plans("91301"), 0);
  EXPECT_EQ(plans("91400"), 1);
}

TEST_F(CudnnAttention, SherdsKernelsComputeShapesWithoutAPlan) {
  CudnnLab own(AttentionMethod::own);
  const Forward want = forward(own, kCase);
  cuda_host::fail_call("cudnn plan", 1, 1);
  for (int turn = 0; turn < 2; ++turn) EXPECT_EQ(bits(forward(lab, kCase).out), bits(want.out));
  EXPECT_EQ(cudnn_calls(), calls(1, 1, 0));
  EXPECT_NE(bits(forward(lab, {2, 48, 2, 2, 16}).lse), bits(forward(own, {2, 48, 2, 2, 16}).lse))
      << "nothing tells cuDNN from sherd's kernels";
}

TEST_F(CudnnAttention, AFailureOfAPlanIsAnError) {
  cuda_host::fail_call("cudnn run", 1, 1);
  EXPECT_THROW(forward(lab, kCase), CudaError);
}

TEST_F(CudnnAttention, WithoutAHandleAutoWarnsAndUsesSherdsKernels) {
  CudnnLab own(AttentionMethod::own), asked(AttentionMethod::cudnn);
  cuda_host::fail_call("cudnnCreate", 1, 1);
  EXPECT_THROW(forward(asked, kCase), CudaError);
  cuda_host::fail_call("cudnnCreate", 1, 1);
  testing::internal::CaptureStderr();
  for (int turn = 0; turn < 2; ++turn)
    EXPECT_EQ(bits(forward(lab, kCase).lse), bits(forward(own, kCase).lse));
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "sherd: warning: GPU 0: cudnnCreate: cuDNN status 1; sherd's attention kernels are used\n");
}

TEST_F(CudnnAttention, TheFirstCallOfAShapeIsIssuedInOrder) {
  const auto side = lab.device->make_stream("side");
  const Tensor qkv = lab.random(kCase.wide(), 1, DType::bf16), out = lab.empty(kCase.narrow(), DType::bf16),
               lse = lab.empty(kCase.sums());
  const auto call = [&] {
    ops::attention_forward(lab.s, out, lse, qkv, kCase.batch, kCase.heads, kCase.kv_heads);
  };
  std::atomic<bool> before{false};
  side->submit("collective", [&](ExecutionContext&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    before = true;
  });
  call();
  EXPECT_TRUE(before);
  EXPECT_EQ(cudnn_calls(), calls(1, 1, 1));
  EXPECT_FALSE(lab.device->issues_in_order());
  lab.s.synchronize();
  std::promise<void> go;
  side->submit("held", [&](ExecutionContext&) { go.get_future().wait(); });
  call();  // a known shape waits for nothing
  go.set_value();
  side->synchronize();
}

TEST(CudnnOption, SaysWhatIsMissing) {
  const auto refusal = [](const std::string& attention) -> std::string {
    try {
      make_cuda_device({.label = "rank 3", .attention = parse_attention(attention)});
      return "accepted";
    } catch (const Error& e) {
      return e.what();
    }
  };
  const auto describe = [] { return make_cuda_device()->describe(); };
  EXPECT_EQ(refusal("cudnn"), "rank 3: attention \"cudnn\": none is imitated");
  EXPECT_EQ(refusal("auto"), "accepted");
  EXPECT_THAT(describe(), Not(HasSubstr("cuDNN")));
  {
    const Installed old("80907");
    EXPECT_EQ(refusal("cudnn"),
              "rank 3: attention \"cudnn\": cuDNN 8.9.7 is too old; install 9.0.0 or newer");
    EXPECT_THAT(describe(), Not(HasSubstr("cuDNN")));
  }
  const Installed installed;
  EXPECT_EQ(refusal("cudnn"), "accepted");
  EXPECT_EQ(refusal("cudnn 8"), "device.attention 'cudnn 8' is unknown; use auto, own or cudnn");
  EXPECT_THAT(describe(), HasSubstr(", attention by cuDNN 9.19.0"));
}

#endif

}  // namespace
}  // namespace sherd::test
