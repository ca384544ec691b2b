// Table of backends. A backend is a folder of comm/, a row of the table and an enumerator of BackendKind.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <sherd/comm/communicator.h>
#include <sherd/comm/launch_options.h>

namespace sherd {

struct Backend {
  BackendKind kind;
  /// As messages, flags and configuration files spell it.
  const char* name;
  /// Ranks cannot share a GPU.
  bool one_gpu_a_rank;
  /// Its ranks are always processes that find each other by MPI, whatever job.bootstrap says.
  bool joins_by_mpi;
  /// Whether this build has it; what follows throws NotCompiled where not.
  bool (*is_built)();
  /// The world communicators of as many threads of this process as there are devices, by rank. They share
  /// ownership of the devices. @throws InvalidArgument for options that cannot be; NotCompiled.
  /// Null where each rank is a process.
  std::vector<std::shared_ptr<Communicator>> (*worlds_of_threads)(
      std::span<const std::shared_ptr<Device>> devices, const LaunchOptions& options);
  /// The world communicator of this process, which is one rank of the job. Every process of the job calls.
  /// Null where all ranks are threads of one process. @throws as worlds_of_threads; CommError.
  std::shared_ptr<Communicator> (*join)(const Job& job, std::shared_ptr<Device> device,
                                        const LaunchOptions& options);
};

/// One for each BackendKind.
std::span<const Backend> backends();

/// @throws InvalidArgument for what is no enumerator.
const Backend& backend_of(BackendKind kind);

/// By Backend::name. @throws InvalidArgument listing the legal names.
BackendKind parse_backend(std::string_view name);
const char* name_of(BackendKind kind);

}  // namespace sherd
