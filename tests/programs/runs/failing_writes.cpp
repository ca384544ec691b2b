// Preloaded: call number FAIL_AT of pwrite() on a file without a name fails with EIO; call number KILL_AT kills the process.

#include <dlfcn.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

namespace {

std::atomic<long> calls{0};

long number(const char* name) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::atol(text) : 0;
}

}  // namespace

extern "C" ssize_t pwrite64(int file, const void* from, size_t bytes, off64_t offset) {
  using Call = ssize_t (*)(int, const void*, size_t, off64_t);
  struct stat status {};
  if (::fstat(file, &status) == 0 && status.st_nlink == 0) {
    const long call = ++calls;
    if (call == number("KILL_AT")) ::kill(::getpid(), SIGKILL);
    if (call == number("FAIL_AT")) {
      errno = EIO;
      return -1;
    }
  }
  return reinterpret_cast<Call>(::dlsym(RTLD_NEXT, "pwrite64"))(file, from, bytes, offset);
}

extern "C" ssize_t pwrite(int file, const void* from, size_t bytes, off_t offset) {
  return pwrite64(file, from, bytes, offset);
}
