#include "fake.h"

#include <mutex>

namespace cuda_host {
namespace {

struct Books {
  std::mutex mutex;
  Live live;
  std::map<std::string, int64_t> calls;
  struct Failure {
    int64_t in;
    int code;
  };
  std::map<std::string, Failure> failures;
};

Books& books() {
  static Books b;
  return b;
}

}  // namespace

Live live() {
  std::lock_guard lock(books().mutex);
  return books().live;
}

void count_live(int64_t Live::*what, int64_t by) {
  std::lock_guard lock(books().mutex);
  books().live.*what += by;
}

std::map<std::string, int64_t> calls() {
  std::lock_guard lock(books().mutex);
  return books().calls;
}

void reset_calls() {
  std::lock_guard lock(books().mutex);
  books().calls.clear();
}

void fail_call(const std::string& function, int64_t n, int code) {
  std::lock_guard lock(books().mutex);
  books().failures[function] = {n, code};
}

void fail_nothing() {
  std::lock_guard lock(books().mutex);
  books().failures.clear();
}

int enter(const char* function) {
  Books& b = books();
  std::lock_guard lock(b.mutex);
  ++b.calls[function];
  const auto f = b.failures.find(function);
  if (f == b.failures.end() || --f->second.in > 0) return 0;
  const int code = f->second.code;
  b.failures.erase(f);
  return code;
}

}  // namespace cuda_host
