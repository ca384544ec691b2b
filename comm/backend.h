// Table of backends. A backend is a folder of comm/, a row of the table and an enumerator of BackendKind.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <sherd/comm/core/communicator.h>
#include <sherd/comm/launch_options.h>

namespace sherd {

struct Backend {
  BackendKind kind;
  /// Name in messages, flags and configuration files.
  const char* name;
  /// Ranks cannot share a GPU.
  bool one_gpu_a_rank;
  /// Its ranks are always processes that rendezvous by MPI, whatever job.bootstrap is.
  bool joins_by_mpi;
  /// Returns whether this build has it; if not, the functions below throw NotCompiled.
  bool (*is_built)();
  /// Returns the world communicators of one thread of this process per device, by rank. They share ownership
  /// of the devices. Null where each rank is a process.
  /// @throws InvalidArgument for invalid options; NotCompiled.
  std::vector<std::shared_ptr<Communicator>> (*worlds_of_threads)(
      std::span<const std::shared_ptr<Device>> devices, const LaunchOptions& options);
  /// Returns the world communicator of this process, which is one rank of the job. Every process of the job
  /// calls. Null where all ranks are threads of one process. @throws as worlds_of_threads; CommError.
  std::shared_ptr<Communicator> (*join)(const Job& job, std::shared_ptr<Device> device,
                                        const LaunchOptions& options);
  /// Sets variables of the environment that its library reads; before the launch has threads, which may read others. May be null.
  void (*set_environment)(const LaunchOptions& options) = nullptr;
};

/// Returns the backends, one for each BackendKind.
std::span<const Backend> backends();

/// @throws InvalidArgument for a value that is not an enumerator.
const Backend& backend_of(BackendKind kind);

/// Parses a Backend::name. @throws InvalidArgument listing the legal names.
BackendKind parse_backend(std::string_view name);
const char* name_of(BackendKind kind);

}  // namespace sherd
