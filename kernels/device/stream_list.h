// List of a device's streams.
#pragma once

#include <mutex>
#include <string>
#include <vector>

namespace sherd {

class Stream;

/// What the streams of a device had failed with.
struct StreamFailures {
  /// One for each stream that had failed: "stream 'gather': all_gather #7 ...".
  std::vector<std::string> texts;
  /// Why the device cannot work on, or "": a device that reports an error of its own (CudaError) has no defined
  /// state any more.
  std::string beyond_repair;
};

/// Thread-safe. Streams add and remove themselves.
class StreamList {
 public:
  void add(Stream& stream);
  void remove(Stream& stream) noexcept;
  /// Calls Stream::reset_failure() of all. No thread may submit work meanwhile. Blocks the host.
  StreamFailures reset();

 private:
  std::mutex mutex_;
  std::vector<Stream*> streams_;
};

}  // namespace sherd
