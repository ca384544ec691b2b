// Devices that host threads touch: a thread that has selected none would open a context on GPU 0.
#include <cuda_host/fake.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include <sherd/comm/launcher.h>
#include <sherd/kernels/device/cuda/lazy_library.h>
#include <sherd/kernels/device/tensor.h>
#include <sherd/kernels/device/trace.h>
#include <sherd/kernels/ops.h>
#include <sherd/kernels/soap/soap.h>
#include <sherd/nn/ops.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/message_of.h"

namespace sherd {
namespace {

/// The device that a new thread has selected after f.
template <class F>
int device_after(F f) {
  int device = -1;
  std::thread([&] {
    f();
    cudaGetDevice(&device);
  }).join();
  return device;
}

TEST(CudaThreads, UsingAnEventSelectsItsDevice) {
  const auto device = make_cuda_device({.label = "rank 3", .ordinal = 3});
  Stream& s = device->compute();
  const Tensor t = Tensor::empty(*device, {4}, DType::f32, "test");
  ops::fill(s, t, 1);
  Event event = s.record();
  EXPECT_EQ(device_after([&] { event.synchronize(); }), 3);

  std::shared_ptr<NativeEvent> native;
  std::shared_ptr<NativeStamp> stamp;
  s.submit("record", [&](ExecutionContext& context) {
    native = context.queue->record();
    stamp = context.queue->stamp();
  });
  s.synchronize();
  EXPECT_EQ(device_after([&] { EXPECT_TRUE(native->done()); }), 3);
  EXPECT_EQ(device_after([&] { EXPECT_TRUE(stamp->done()); }), 3);
  EXPECT_EQ(device_after([&] { stamp->synchronize(); }), 3);
}

TEST(CudaMemory, TheDeviceReportsItsSize) {
  EXPECT_EQ(make_cuda_device({.label = "rank 0", .memory_limit = 1 << 20})->total_memory(),
            cuda_host::kDeviceBytes);
  EXPECT_EQ(make_cpu_device()->total_memory(), 0);
}

// The imitation has 8 devices.
TEST(CudaLaunch, MoreRanksThanGpusWithNcclAreRefusedBeforeAnything) {
  const auto text_of = [](int ranks) -> std::string {
    try {
      launch(ranks,
             {.device = {.kind = DeviceKind::cuda},
              .job = {.bootstrap = Bootstrap::none},
              .backend = BackendKind::nccl},
             [](RankContext&) {});
      return "accepted";
    } catch (const InvalidArgument& e) {
      return e.what();
    }
  };
  EXPECT_EQ(text_of(9),
            "9 ranks with backend = nccl on 8 GPUs: it takes one GPU a rank; use backend = local, whose "
            "ranks share GPUs, or at most 8 ranks");
  EXPECT_EQ(text_of(2),
            "ranks = 2 with backend = nccl as threads of one process: a call for memory on one GPU waits "
            "there for the "
            "collectives of the others, which may wait for that rank; start a process for each GPU (`sherd "
            "run --nproc 2 "
            "-- COMMAND`), or give backend = local");
}

TEST(CudaDevice, TheKernelOfAnotherChipIsReplacedAndReported) {
  for (const auto& [capability, text] : std::initializer_list<std::pair<const char*, const char*>>{
           {"80", "8.0"}, {"100", "10.0"}, {"120", "12.0"}}) {
    setenv("SHERD_HOST_CUDA_CAPABILITY", capability, 1);
    testing::internal::CaptureStderr();
    const auto device =
        make_cuda_device({.label = "rank 3", .symmetric_products = SymmetricProducts::hopper});
    EXPECT_EQ(
        testing::internal::GetCapturedStderr(),
        "sherd: warning: rank 3: symmetric_products \"hopper\" needs compute capability 9.0, this GPU has " +
            std::string(text) + "; \"blocks\" is used\n");
  }
  unsetenv("SHERD_HOST_CUDA_CAPABILITY");
}

TEST(CudaQueues, AreGivenWorkInTheHostsOrderWhenAsked) {
  const auto device = make_cuda_device();
  const auto side = device->make_stream("side");
  std::atomic<int> issued{0};
  device->issue_in_order(true);
  for (int i = 0; i < 4; ++i) {
    Stream& s = i % 2 ? *side : device->compute();
    s.submit("slow", [&](ExecutionContext&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      ++issued;
    });
    EXPECT_EQ(issued, i + 1);
    (i % 2 ? device->compute() : *side).wait(s.record());
  }

  device->issue_in_order(false);
  std::promise<void> go;
  side->submit("held", [&](ExecutionContext&) {
    go.get_future().wait();
    ++issued;
  });
  EXPECT_EQ(issued, 4);  // submit() came back before
  go.set_value();
  side->synchronize();
  EXPECT_EQ(issued, 5);
}

// A first product may load kernels, which may wait for collectives that were issued: those before it must have been, and
// none behind it.
TEST(CudaQueues, TheFirstProductOfAShapeIsIssuedInOrder) {
  const auto device = make_cuda_device();
  const auto side = device->make_stream("side");
  Stream& s = device->compute();
  const Tensor a = Tensor::empty(*device, {4, 8}, DType::f32, "test"),
               b = Tensor::empty(*device, {8, 8}, DType::f32, "test"),
               c = Tensor::empty(*device, {4, 8}, DType::f32, "test");
  ops::fill(s, a, 1);
  ops::fill(s, b, 1);
  std::atomic<bool> before{false};
  const auto queue_slow = [&] {
    before = false;
    side->submit("collective", [&](ExecutionContext&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      before = true;
    });
  };
  const auto plans = [] { return cuda_host::calls()["cublasLtMatmulAlgoGetHeuristic"]; };
  queue_slow();
  const int64_t known = plans();
  ops::gemm(s, c, a, false, b, false);
  EXPECT_TRUE(before);
  EXPECT_GT(plans(), known);  // issued: its plan is made
  EXPECT_FALSE(device->issues_in_order());

  s.synchronize();
  std::promise<void> go;
  side->submit("held", [&](ExecutionContext&) { go.get_future().wait(); });
  ops::gemm(s, c, a, false, b, false);  // a known shape waits for nothing
  go.set_value();
  side->synchronize();
  queue_slow();
  ops::gemm(s, c, a, false, b, true);
  EXPECT_TRUE(before);
}

/// Expects `sort` to be issued behind what `side` was given before at the first call, and beside it at the second.
void expect_first_in_order(Stream& side, const std::function<void()>& sort) {
  std::atomic<bool> before{false};
  side.submit("collective", [&](ExecutionContext&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    before = true;
  });
  sort();
  EXPECT_TRUE(before);
  std::promise<void> go;
  side.submit("held", [&](ExecutionContext&) { go.get_future().wait(); });
  sort();  // waits for nothing
  go.set_value();
  side.synchronize();
}

TEST(CudaQueues, TheFirstSortOfACountIsIssuedInOrder) {
  const auto device = make_cuda_device();
  const auto side = device->make_stream("side");
  Stream& s = device->compute();
  const Tensor experts = Tensor::empty(*device, {6}, DType::i32, "test"),
               order = Tensor::empty(*device, {6}, DType::i32, "test"),
               position = Tensor::empty(*device, {6}, DType::i32, "test"),
               counts = Tensor::empty(*device, {3}, DType::i32, "test"),
               tokens = Tensor::empty(*device, {1, 6}, DType::i32, "test"),
               rows = Tensor::empty(*device, {6, 8}, DType::f32, "test"),
               table = Tensor::empty(*device, {5, 8}, DType::f32, "test");
  for (const Tensor& t : {experts, tokens, rows, table}) ops::fill(s, t, 1);
  for (const int64_t count : {6, 4}) {
    const auto some = [&](const Tensor& t) { return t.flat(0, count); };
    expect_first_in_order(
        *side, [&] { ops::sort_by_expert(s, some(order), some(position), counts, some(experts)); });
    expect_first_in_order(*side, [&] {
      ops::embedding_backward(s, table, {}, rows.flat(0, count * 8).view({count, 8}),
                              some(tokens).view({1, count}));
    });
  }
}

// The first step of a matrix makes its bases alone; the second rotates by them: other products, and cuSOLVER's QR.
TEST(CudaQueues, TheSecondStepOfSoapIsIssuedInOrder) {
  constexpr int64_t kRows = 4, kCols = 6;
  const auto device = make_cuda_device();
  const auto side = device->make_stream("side");
  Stream& s = device->compute();
  std::vector<Tensor> kept;
  const auto zeros = [&](Shape shape) {
    const Tensor t = Tensor::empty(*device, std::move(shape), DType::f32, "test");
    ops::fill(s, t, 0);
    kept.push_back(t);
    return t.data<float>();
  };
  SoapMatrix matrix;
  matrix.state = {.left = zeros({kRows, kRows}),
                  .left_basis = zeros({kRows, kRows}),
                  .left_values = zeros({kRows}),
                  .right = zeros({kCols, kCols}),
                  .right_basis = zeros({kCols, kCols}),
                  .right_values = zeros({kCols}),
                  .exp_avg = zeros({kRows, kCols}),
                  .exp_avg_sq = zeros({kRows, kCols}),
                  .steps = zeros({1})};
  const Tensor in = Tensor::empty(*device, {1, kRows, kCols}, DType::f32, "test"),
               out = Tensor::empty(*device, {1, kRows, kCols}, DType::f32, "test"),
               status = Tensor::empty(*device, {1}, DType::i32, "test");
  ops::random_normal(s, in, 0, 1, "in", 0, 1);
  const auto step = [&] { ops::soap_step(s, out, in, status, std::array{matrix}, {}); };
  const auto plans = [] { return cuda_host::calls()["cublasLtMatmulAlgoGetHeuristic"]; };
  const auto solved = [] { return cuda_host::calls()["cusolverDnDgeqrf"]; };
  device->issue_in_order(true);  // as in the first step of a model
  step();
  device->issue_in_order(false);
  s.synchronize();
  std::atomic<bool> before{false};
  side->submit("collective", [&](ExecutionContext&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    before = true;
  });
  const int64_t known = plans(), none = solved();
  step();
  EXPECT_TRUE(before);
  s.synchronize();
  EXPECT_GT(plans(), known);
  EXPECT_GT(solved(), none);
}

TEST(CudaQueues, InOrderFailuresAreThrownAsUsual) {
  const auto device = make_cuda_device();
  device->issue_in_order(true);
  device->compute().submit("broken", [](ExecutionContext&) { throw InvalidArgument("on purpose"); });
  EXPECT_THROW(device->compute().submit("never", [](ExecutionContext&) { FAIL(); }), InvalidArgument);
  EXPECT_THROW(device->compute().synchronize(), InvalidArgument);
}

TEST(CudaQueues, TakeNoMoreWorkThanTheOptionSays) {
  for (const int64_t most : {1, 2, 8, 200}) {
    const auto device = make_cuda_device({.max_queued_work = most});
    Stream& s = device->compute();
    const Tensor t = Tensor::empty(*device, {4}, DType::f32, "test");
    ops::fill(s, t, 0);
    const Tensor one = Tensor::empty(*device, {4}, DType::f32, "test");
    ops::fill(s, one, 1);
    for (int i = 0; i < 500; ++i) ops::add(s, t, t, one);
    EXPECT_EQ(ops::to_floats(s, t), std::vector<float>(4, 500));
    EXPECT_LE(device->run_ahead().peak_work(), most);
  }
}

// Also of a stream without recorded events.
TEST(CudaQueues, ReportTheProgressOfTheDevice) {
  const auto device = make_cuda_device();
  const auto side = device->make_stream("side");
  const Tensor t = Tensor::empty(*device, {4}, DType::f32, "test");
  ops::fill(*side, t, 0);
  const auto begin = std::chrono::steady_clock::now();
  while (device->run_ahead().done() < device->run_ahead().queued()) {
    ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(CudaLibraries, AreFoundInTheProgramBeforeTheyAreLoaded) {
  EXPECT_EQ(cuda::find_function("libnone.so.1", "cublasLtCreate"),
            reinterpret_cast<void*>(&::cublasLtCreate));
}

TEST(CudaLibraries, AMissingOneIsAnErrorThatNamesTheRemedy) {
  const auto error_of = [](const char* library) -> std::string {
    return message_of<CudaError>([&] { cuda::find_function(library, "sherd_nothing"); });
  };
  EXPECT_NE(error_of("libnone.so.1").find("cannot load libnone.so.1 ("), std::string::npos);
  EXPECT_NE(error_of("libnone.so.1").find("LD_LIBRARY_PATH"), std::string::npos);
  EXPECT_NE(error_of("libc.so.6").find("libc.so.6 has no sherd_nothing"), std::string::npos);
}

TEST(CudaQueues, AreAskedForBeforeTheFirstCall) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // in a process of its own
  const auto count = [](const char* value) {
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    if (value) setenv("CUDA_DEVICE_MAX_CONNECTIONS", value, 1);
    for (int i = 0; i < 2; ++i) cuda_device_count();
    std::fprintf(stderr, "asked for %s\n", std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"));
    std::exit(0);
  };
  const auto exits = testing::ExitedWithCode(0);
  EXPECT_EXIT(count(nullptr), exits, "^asked for 32");
  EXPECT_EXIT(count("16"), exits, "^asked for 16");
  EXPECT_EXIT(count("1"), exits, "^sherd: warning: CUDA_DEVICE_MAX_CONNECTIONS is 1, .*\nasked for 1");
}

}  // namespace
}  // namespace sherd
