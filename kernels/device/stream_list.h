// List of a device's streams.
#pragma once

#include <mutex>
#include <string>
#include <vector>

namespace sherd {

class Stream;

/// Failures of a device's streams.
struct StreamFailures {
  /// One text for each failed stream: "stream 'gather': all_gather #7 ...".
  std::vector<std::string> texts;
  /// Why the device cannot continue, or "": after an error of its own (CudaError) its state is undefined.
  std::string beyond_repair;
};

/// Thread-safe. Streams add and remove themselves.
class StreamList {
 public:
  void add(Stream& stream);
  void remove(Stream& stream) noexcept;
  /// Calls Stream::wait_issued() of all.
  void wait_issued();
  /// Calls Stream::reset_failure() of all. No thread may submit work meanwhile. Blocks the host.
  StreamFailures reset();

 private:
  std::mutex mutex_;
  std::vector<Stream*> streams_;
};

}  // namespace sherd
