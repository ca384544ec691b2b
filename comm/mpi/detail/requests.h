// Sends, receives and reductions of MPI that are under way, each with the batch it belongs to. Private to comm/mpi; for
// the MPI thread alone.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <mpi.h>

#include <sherd/comm/mpi/detail/batch.h>

namespace sherd::mpi {

class Requests {
 public:
  /// Purpose of a request.
  struct Open {
    std::shared_ptr<std::string> message;  // a control message that is sent
    std::shared_ptr<Batch> batch;          // or what a transfer or a reduction belongs to
    bool receives = false;
    int process = 0;  // at the other end
  };

  /// `failed` receives an error of MPI.
  explicit Requests(std::function<void(const std::string& cause)> failed) : failed_(std::move(failed)) {}

  bool empty() const { return requests_.empty(); }
  void add(MPI_Request request, Open what);
  /// Cancels the batch's receives. A send cannot be cancelled in practice: it ends when its receiver drains.
  void cancel(const std::shared_ptr<Batch>& batch);
  /// Removes those that have ended and tells their batches. Returns whether there were any.
  bool test();
  /// Never frees the memory that MPI may still read or write.
  void leak();

 private:
  void report(int result, int count);

  std::function<void(const std::string& cause)> failed_;
  std::vector<MPI_Request> requests_;
  std::vector<Open> what_;  // of each request
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace sherd::mpi
