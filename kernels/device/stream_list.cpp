#include <sherd/kernels/device/stream_list.h>

#include <exception>

#include <sherd/base/error.h>
#include <sherd/kernels/device/stream.h>

namespace sherd {

void StreamList::add(Stream& stream) {
  std::lock_guard lock(mutex_);
  streams_.push_back(&stream);
}

void StreamList::remove(Stream& stream) noexcept {
  std::lock_guard lock(mutex_);
  std::erase(streams_, &stream);
}

void StreamList::wait_issued() {
  std::lock_guard lock(mutex_);
  for (Stream* stream : streams_) stream->wait_issued();
}

StreamFailures StreamList::reset() {
  std::lock_guard lock(mutex_);
  StreamFailures failures;
  for (Stream* stream : streams_) {
    const std::exception_ptr failure = stream->reset_failure();
    if (!failure) continue;
    const std::string where = "stream '" + stream->name() + "': ";
    try {
      std::rethrow_exception(failure);
    } catch (const CudaError& e) {
      failures.texts.push_back(where + e.what());
      failures.beyond_repair = where + e.what() + ": what is on the device is undefined after that";
    } catch (const std::exception& e) {
      failures.texts.push_back(where + e.what());
    } catch (...) {
      failures.texts.push_back(where + "an exception that is not a std::exception");
    }
  }
  return failures;
}

}  // namespace sherd
