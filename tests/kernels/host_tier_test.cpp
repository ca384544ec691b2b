// Memory in a file without a name, and ranges that are still to be read.

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <sherd/kernels/device/file_memory.h>
#include <sherd/kernels/device/pending_reads.h>
#include <sherd/kernels/ops.h>

#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;

TEST(FileMemory, BlocksAreMappedRangesOfAFileWithoutAName) {
  const TemporaryFolder folder;
  FileMemory memory(folder.path());
  auto* const first = static_cast<char*>(memory.allocate(5000));
  auto* const second = static_cast<char*>(memory.allocate(100));
  EXPECT_TRUE(fs::is_empty(folder.path()));
  EXPECT_TRUE(memory.holds(first + 4999));
  EXPECT_FALSE(memory.holds(&memory));
  std::vector<char> values(5000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<char>(i * 7);
  memory.write(first, values.data(), 5000);
  EXPECT_EQ(std::memcmp(first, values.data(), 5000), 0) << "the mapping shows what was written";
  std::memcpy(second, "mapped", 7);
  char back[7];
  memory.read(back, second, 7);
  EXPECT_STREQ(back, "mapped");
  memory.read(back, first + 4000, 7);
  EXPECT_EQ(std::memcmp(back, values.data() + 4000, 7), 0);
  memory.release(first, 5000);
  EXPECT_FALSE(memory.holds(first));
  memory.read(back, second, 7);
  EXPECT_STREQ(back, "mapped");
  memory.release(second, 100);
}

TEST(FileMemory, AFileThatWasMadeShorterIsAnError) {
  const TemporaryFolder folder;
  FileMemory memory(folder.path());
  void* const block = memory.allocate(8192);
  // The only open file without a name in that folder.
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (fs::read_symlink(entry.path(), gone).string().starts_with(fs::canonical(folder.path()).string()))
      fs::resize_file(entry.path(), 4096, gone);
  }
  char back[16];
  memory.read(back, block, 16);
  EXPECT_THAT(message_of<IoError>([&] { memory.read(back, static_cast<char*>(block) + 4096, 16); }),
              AllOf(HasSubstr("the file ends at 4096"), HasSubstr("it was made shorter")));
  memory.release(block, 8192);
}

TEST(FileMemory, CopiesOfADeviceDoNotMapIt) {
  const TemporaryFolder folder;
  const auto device = make_cpu_device({.offload_folder = folder.path().string()});
  Stream& s = device->compute();
  constexpr int64_t kCount = 4 << 20;
  const Tensor rest = Tensor::at(Place::host, *device, {kCount}, DType::f32, MemoryClass::optimizer, "test"),
               there = Tensor::empty(*device, {kCount}, DType::f32, "test"),
               back = Tensor::empty(*device, {kCount}, DType::f32, "test");
  EXPECT_EQ(rest.place(), Place::host);
  EXPECT_EQ(there.place(), Place::device);
  EXPECT_EQ(rest.flat(5, 9).place(), Place::host);
  EXPECT_EQ(device->allocator().live_bytes() / 2, kCount * 4);
  EXPECT_EQ(device->host_tier().live_bytes(), kCount * 4);
  ops::fill(s, there, 1.5);
  ops::copy(s, rest, there);
  ops::copy(s, back, rest);
  EXPECT_EQ(ops::to_floats(s, back.flat(kCount - 2, kCount)), (std::vector<float>{1.5f, 1.5f}));
  EXPECT_EQ(ops::to_floats(s, rest.flat(0, 1)), std::vector<float>{1.5f}) << "kernels read it by its mapping";
}

TEST(PendingReads, WritersWaitForTheRangesThatTheyOverwrite) {
  PendingReads reads;
  std::vector<char> memory(1000);
  EXPECT_EQ(reads.newest(), 0);
  const uint64_t first = reads.add(memory.data(), 100), second = reads.add(memory.data() + 500, 100);
  EXPECT_EQ(reads.newest(), second);
  reads.wait(second, memory.data() + 100, 400);  // between them
  reads.wait(second, memory.data() + 600, 400);
  reads.wait(first, memory.data() + 500, 100);  // the writer was queued before the second
  std::atomic<bool> writes{false};
  std::thread writer([&] {
    reads.wait(second, memory.data() + 550, 20);
    writes = true;
  });
  reads.done(first);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(writes);
  reads.done(second);
  writer.join();
  EXPECT_EQ(reads.newest(), 0);
}

TEST(PendingReads, RangesOfSeveralReadersAreEachWaitedFor) {
  PendingReads reads;
  std::vector<char> memory(100);
  const uint64_t first = reads.add(memory.data(), 60), second = reads.add(memory.data() + 40, 60);
  reads.done(second);
  reads.wait(second, memory.data() + 60, 40);
  std::thread all([&] { reads.wait(second); });
  reads.done(first);
  all.join();
}

}  // namespace
}  // namespace sherd::test
