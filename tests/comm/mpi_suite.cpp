// The suites of every backend over MPI, and its own: each process that mpirun starts runs the same tests, and
// the ranks of a run are shared out among them, in order.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include <sherd/comm/bootstrap/detail/mpi_bootstrap.h>
#include <sherd/comm/bootstrap/detail/mpi_process.h>
#include <sherd/comm/mpi/detail/mpi_world.h>

#include "comm/ranks.h"

namespace sherd::test {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 60s;

/// A part of the job's store for one run: joining the job for each would cost more than most runs.
class StoreOfARun : public Store {
 public:
  StoreOfARun(std::shared_ptr<Store> whole, std::string prefix)
      : whole_(std::move(whole)), prefix_(std::move(prefix)) {}

 protected:
  StoreReply ask(const StoreRequest& request) override {
    using Op = StoreRequest::Op;
    const std::string key = prefix_ + request.key;
    StoreReply reply{.status = StoreReply::Status::ok};
    switch (request.op) {
      case Op::set:
        whole_->set(key, request.value);
        break;
      case Op::set_once:
        reply.values = {whole_->set_once(key, request.value)};
        break;
      case Op::get:
        if (const auto value = whole_->get(key, request.patience))
          reply.values = {*value};
        else
          reply.status = StoreReply::Status::absent;
        break;
      case Op::add:
        reply.number = whole_->add(key, request.number);
        break;
      case Op::erase:
        whole_->erase(key);
        break;
      case Op::all:
        if (auto values = whole_->all(key, request.number))
          reply.values = std::move(*values);
        else
          reply.status = StoreReply::Status::absent;
        break;
      case Op::bye:
        break;
    }
    return reply;
  }

 private:
  const std::shared_ptr<Store> whole_;
  const std::string prefix_;
};

/// For a process without a rank, which takes part in the making of the world alone: a failure of the ranks,
/// which may be over with theirs, must not end that, or MPI would be left without a process.
class StoreWithoutNotices final : public StoreOfARun {
 public:
  explicit StoreWithoutNotices(std::shared_ptr<Store> store) : StoreOfARun(std::move(store), "") {}

 protected:
  StoreReply ask(const StoreRequest& request) override {
    if (request.op == StoreRequest::Op::get && request.key == "sherd/abort") return {};
    return StoreOfARun::ask(request);
  }
};

/// Returns the job of this process, from the beginning of main() to its end.
Job& job() {
  static Job joined;
  return joined;
}

/// Every process makes the same ones in the same order.
std::shared_ptr<Store> next_store() {
  static int made = 0;
  return std::make_shared<StoreOfARun>(job().store, fmt::format("run {}/", ++made));
}

std::vector<int> process_of(int ranks) {
  std::vector<int> of;
  for (int r = 0; r < ranks; ++r) of.push_back(r * std::min(processes(), ranks) / ranks);
  return of;
}

}  // namespace

int processes() { return mpi_place().size; }

bool is_here(int rank, int ranks) { return process_of(ranks)[static_cast<size_t>(rank)] == mpi_place().rank; }

int ranks_here(int ranks) {
  const std::vector<int> of = process_of(ranks);
  return static_cast<int>(std::ranges::count(of, mpi_place().rank));
}

std::vector<std::string> from_all_processes(const std::vector<std::string>& texts) {
  const std::shared_ptr<Store> own = next_store();
  Store& store = *own;
  const int me = job().environment.rank, size = job().environment.size;
  for (size_t i = 0; i < texts.size(); ++i) store.set(fmt::format("{}/{}", me, i), texts[i]);
  store.set(fmt::format("count/{}", me), std::to_string(texts.size()));
  std::vector<std::string> all;
  for (int p = 0; p < size; ++p) {
    const int count = std::stoi(store.wait(fmt::format("count/{}", p), kPatience));
    for (int i = 0; i < count; ++i) all.push_back(store.wait(fmt::format("{}/{}", p, i), kPatience));
  }
  return all;
}

std::shared_ptr<Store> common_store() { return next_store(); }

// Messages and pieces so small that most calls need several, unless a test asks for others.
void run_ranks(int ranks, const LaunchOptions& options, const std::function<void(RankContext&)>& body) {
  const std::shared_ptr<Store> store = next_store();
  std::vector<std::shared_ptr<Device>> devices;
  for (int r = 0; r < ranks; ++r)
    if (is_here(r, ranks))
      devices.push_back(make_cpu_device({.label = fmt::format("rank {}", r),
                                         .kernels = options.device.kernels,
                                         .threads = 1,
                                         .memory_limit = options.device.memory_limit}));
  MpiOptions mpi = options.mpi;
  mpi.timeout = options.timeout;
  mpi.flight_recorder = options.flight_recorder;
  mpi.poll = 20ms;
  if (mpi.max_message == MpiOptions().max_message) mpi.max_message = 3000;
  if (mpi.reduction_piece == MpiOptions().reduction_piece) mpi.reduction_piece = 1100;
  std::exception_ptr failure;
  const std::vector<int> processes_of_ranks = process_of(ranks);
  const int me = job().environment.rank, size = job().environment.size;
  // A late rank has not used up a test's short timeout.
  store->barrier("before the world", me, size, kPatience);
  {
    const auto told = devices.empty() ? std::make_shared<StoreWithoutNotices>(store) : store;
    const auto worlds = make_mpi_world(devices, processes_of_ranks, told, mpi);
    // No rank fails while the process of another one still makes the world, which would then have none.
    if (!devices.empty()) store->barrier("in the world", me, processes_of_ranks.back() + 1, kPatience);
    std::vector<RankContext> contexts;
    for (size_t i = 0; i < devices.size(); ++i) contexts.push_back({devices[i], worlds[i]});
    try {
      launch(std::move(contexts), body);
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace sherd::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  sherd::test::job() = sherd::mpi_bootstrap(sherd::test::kPatience);
  const int result = RUN_ALL_TESTS();
  sherd::test::job() = {};
  return result;
}
