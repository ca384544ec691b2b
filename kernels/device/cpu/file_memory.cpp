#include <sherd/kernels/device/file_memory.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <iterator>
#include <system_error>

#include <sherd/base/error.h>

namespace sherd {

FileMemory::~FileMemory() {
  if (file_ >= 0) ::close(file_);
}

void FileMemory::fail(const std::string& what, int error) const {
  throw IoError(fmt::format("offload folder '{}': {}: {}", folder_.string(), what,
                            std::generic_category().message(error)));
}

void FileMemory::open() {
  file_ = ::open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file_ >= 0) return;
  // File systems without O_TMPFILE.
  std::string name = (folder_ / "sherd.offload.XXXXXX").string();
  file_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (file_ < 0) fail("cannot make a file; give a folder on a disk that this user may write to", errno);
  ::unlink(name.c_str());
}

void* FileMemory::allocate(int64_t bytes) {
  std::lock_guard lock(mutex_);
  if (file_ < 0) open();
  const int64_t page = ::sysconf(_SC_PAGESIZE), size = (bytes + page - 1) / page * page;
  int error = 0;
  do error = ::posix_fallocate(file_, end_, size);
  while (error == EINTR);
  if (error != 0)
    fail(fmt::format("cannot reserve {} bytes behind {}; make room, give another folder, or raise the limit "
                     "of file sizes "
                     "(ulimit -f)",
                     size, end_),
         error);
  void* const p = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_NORESERVE, file_, end_);
  if (p == MAP_FAILED) return nullptr;
  blocks_.emplace(static_cast<const char*>(p), Block{size, end_});
  end_ += size;
  return p;
}

void FileMemory::release(void* p, int64_t) noexcept {
  std::lock_guard lock(mutex_);
  const auto at = blocks_.find(static_cast<const char*>(p));
  ::munmap(p, static_cast<size_t>(at->second.bytes));
  ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at->second.offset, at->second.bytes);
  blocks_.erase(at);
}

bool FileMemory::holds(const void* p) const {
  std::lock_guard lock(mutex_);
  const auto after = blocks_.upper_bound(static_cast<const char*>(p));
  if (after == blocks_.begin()) return false;
  const auto& [begin, block] = *std::prev(after);
  return static_cast<const char*>(p) < begin + block.bytes;
}

int64_t FileMemory::offset_of(const void* p) const {
  std::lock_guard lock(mutex_);
  const auto& [begin, block] = *std::prev(blocks_.upper_bound(static_cast<const char*>(p)));
  return block.offset + (static_cast<const char*>(p) - begin);
}

void FileMemory::read(void* to, const void* from, int64_t bytes) const {
  auto* at = static_cast<char*>(to);
  for (int64_t offset = offset_of(from); bytes > 0;) {
    const ssize_t n = ::pread(file_, at, static_cast<size_t>(bytes), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(fmt::format("cannot read {} bytes at {}", bytes, offset), errno);
    if (n == 0)
      throw IoError(
          fmt::format("offload folder '{}': the file ends at {}, {} bytes early: it was made shorter",
                      folder_.string(), offset, bytes));
    at += n;
    offset += n;
    bytes -= n;
  }
}

void FileMemory::write(void* to, const void* from, int64_t bytes) const {
  const auto* at = static_cast<const char*>(from);
  // Pages that a kernel has mapped meanwhile are resident until then; the file keeps what is in them.
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(to) + page - 1) / page * page,
                  end = (reinterpret_cast<uintptr_t>(to) + static_cast<uintptr_t>(bytes)) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  for (int64_t offset = offset_of(to); bytes > 0;) {
    const ssize_t n = ::pwrite(file_, at, static_cast<size_t>(bytes), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail(fmt::format("cannot write {} bytes at {}", bytes, offset), n < 0 ? errno : ENOSPC);
    at += n;
    offset += n;
    bytes -= n;
  }
}

}  // namespace sherd
