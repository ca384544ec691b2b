#include <sherd/comm/mpi/detail/requests.h>

#include <utility>

#include <fmt/format.h>

#include <sherd/comm/bootstrap/detail/mpi_process.h>

namespace sherd::mpi {
namespace {

std::string error_text(int error) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(error, text, &length);
  return text;
}

}  // namespace

void Requests::add(MPI_Request request, Open what) {
  requests_.push_back(request);
  what_.push_back(std::move(what));
}

void Requests::cancel(const std::shared_ptr<Batch>& batch) {
  for (size_t i = 0; i < requests_.size(); ++i)
    if (what_[i].batch == batch && what_[i].receives) check_mpi(MPI_Cancel(&requests_[i]), "MPI_Cancel");
}

bool Requests::test() {
  if (empty()) return false;
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int count = 0;
  const int result = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                  indices_.data(), statuses_.data());
  // MPI_ERR_IN_STATUS: single requests failed, which report() names.
  if (result != MPI_SUCCESS && result != MPI_ERR_IN_STATUS) check_mpi(result, "MPI_Testsome");
  if (count == MPI_UNDEFINED || count == 0) return false;
  // The launch fails before any rank treats a transfer as received.
  report(result, count);
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(indices_[static_cast<size_t>(i)]);
    if (const Open& what = what_[at]; what.batch) {
      what.batch->count(what.process, !what.receives, -1);
      Batch::end_one(what.batch);
    }
    // Drops the control message's bytes or the batch now, not with the compaction below.
    what_[at] = {};
  }
  // Completed requests are null; the others are compacted.
  size_t kept = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    requests_[kept] = requests_[i];
    what_[kept++] = std::move(what_[i]);
  }
  requests_.resize(kept);
  what_.resize(kept);
  return true;
}

/// Reports the errors among `count` requests that have ended.
void Requests::report(int result, int count) {
  if (result != MPI_ERR_IN_STATUS) return;
  for (int i = 0; i < count; ++i) {
    const int error = statuses_[static_cast<size_t>(i)].MPI_ERROR;
    if (error == MPI_SUCCESS || error == MPI_ERR_PENDING) continue;
    const Open& what = what_[static_cast<size_t>(indices_[static_cast<size_t>(i)])];
    if (what.batch) what.batch->failed_.store(true, std::memory_order_release);
    failed_(fmt::format("MPI: a message {} process {} failed: {}", what.receives ? "from" : "to",
                        what.process, error_text(error)));
  }
}

void Requests::leak() { static_cast<void>(new std::vector<Open>(std::move(what_))); }

}  // namespace sherd::mpi
