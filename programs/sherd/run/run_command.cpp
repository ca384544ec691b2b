#include "run_command.h"

#include <algorithm>
#include <string_view>

#include <sherd/base/error.h>
#include <sherd/base/program.h>
#include <sherd/kernels/device/device.h>

#include "arguments.h"
#include "run_local.h"
#include "run_rank.h"

namespace sherd::tools {
namespace {

constexpr int64_t kMaxRanks = 65536, kMaxRestarts = 1'000'000, kMaxSeconds = 1'000'000;

constexpr const char* kRunHelp =
    R"(COMMAND is a program and its arguments after `--`, such as train_gpt --comm mpi --save DIR --save-every
100. mpirun (Open MPI 4.1) starts its ranks, on this machine or on --hosts, where sherd and the program
have the same paths; with --local, and with train_gpt --comm nccl on one host, sherd starts them itself, with RANK,
WORLD_SIZE, LOCAL_RANK and SHERD_JOB_SECRET in their environment. A rank fails when it is killed, throws, ends with a non-zero exit code, is suspended
for --stopped-for, or is waited for longer than the other ranks' --comm-timeout. The others then have
--grace to report. After that all are ended (SIGTERM, then SIGKILL) and started again from the newest
checkpoint of --save: --resume DIR is added to the command, which continues its --metrics file. A line on
stderr for each start names the cause, the number of ranks and the step.

Ranks. A restart has the ranks that are left, reduced to the largest number, at least --min-ranks, that
splits the command's --batch over its --grad-accum evenly and keeps --replicas, --tp, --context and
--expert-parallel (flags, its --config file, or the checkpoint's settings). On one machine all ranks are left except those
that --shrink or --lost-code remove; of --hosts those count that answer. When two consecutive starts fail
to begin, or the same rank is killed twice before a step is done, the restart has one rank less.

The run is aborted when --max-restarts are used up, when the program refuses its arguments (exit code 2),
when it has ended for good with a failure (exit code 3: train_gpt, for which SHERD_RUN is set in the
environment, has done its last step, and lines of --metrics are missing, say), when too few ranks are
left, and when it ends twice in the same way before it has done a step (a crash loop).

After a failed save (exit code 4 of train_gpt: the disk is full, say) the next start waits, at most
--room-within, until the folder of --save has room for a checkpoint as large as its newest; then the run
is aborted.

SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 become one SIGTERM of every rank, without a restart. A second
signal, 0.25 s later or more, ends the ranks at once. All processes on a host end with this program, even when it
is killed. Output without a reader is lost; it ends nothing.
Exit code: 0 ended well, 1 aborted or stopped, 2 wrong arguments (of this program or COMMAND).
)";

/// Puts the number of GPUs in the place of "gpu". @returns an error, or nothing.
std::string count_gpus(std::string& word) {
  if (word != "gpu") return "";
  int gpus = 0;
  try {
    gpus = cuda_device_count();
  } catch (const NotCompiled&) {  // a build without CUDA uses none
  }
  if (gpus == 0) return "this host has no GPU, or no driver; give a number of ranks";
  word = std::to_string(gpus);
  return "";
}

}  // namespace

CLI::App* RunCommand::add_to(CLI::App& app) {
  app_ =
      app.add_subcommand("run", "start a program's ranks, again when one fails, from the newest checkpoint");
  PolicyOptions& policy = options_.policy;
  const auto number = [&](const char* name, int64_t& value, int64_t low, int64_t high, const char* help) {
    return app_->add_option(name, value, help)->type_name("N")->check(whole_number(low, high));
  };
  number("--nproc", policy.ranks, 1, kMaxRanks, "ranks, each a process; gpu: one for each GPU of this host")
      ->transform(CLI::Validator(count_gpus, ""));
  number("--max-restarts", policy.max_restarts, 0, kMaxRestarts, "restarts, of whatever cause [3]");
  number("--min-ranks", policy.min_ranks, 1, kMaxRanks, "the fewest ranks of a restart [1]");
  app_->add_flag("--shrink", policy.shrink, "do not start a rank again that was killed or is suspended");
  app_->add_option("--lost-code", policy.lost_code, "neither is one that ends with this exit code")
      ->type_name("CODE")
      ->check(whole_number(1, 255));
  CLI::Option* hosts =
      app_->add_option("--hosts", options_.hosts, "h1,h2:4: where to; behind a colon how many ranks")
          ->type_name("LIST");
  app_->add_option("--hostfile", options_.hostfile, "the same from a file, `NAME slots=N` a line")
      ->type_name("FILE")
      ->excludes(hosts);
  app_->add_option("--mpirun", options_.mpirun, "another launcher that takes Open MPI's arguments [mpirun]")
      ->type_name("PATH");
  app_->add_option("--mpirun-arg", options_.mpirun_arguments, "a further argument of mpirun; may be repeated")
      ->type_name("ARG")
      ->expected(1)
      ->take_all();
  app_->add_option("--remote-shell", options_.remote_shell, "with which hosts are reached")
      ->type_name("COMMAND")
      ->capture_default_str();
  const auto seconds = [&](const char* name, double& value, const char* help) {
    app_->add_option_function<int64_t>(
            name, [&value](int64_t s) { value = static_cast<double>(s); }, help)
        ->type_name("SECONDS")
        ->check(whole_number(1, kMaxSeconds));
  };
  seconds("--begin-within", options_.begin_within,
          "longest time until all ranks have begun; a quarter of it from the first rank to the last [120]");
  seconds("--grace", options_.grace,
          "time that the others have to report a failure; after a rank that is killed before a step is done, "
          "no more than the start has lasted, and at least 2 s [15]");
  seconds("--stop-grace", options_.stop_grace,
          "that they have to save and end when stopped by a signal [300]");
  seconds("--stopped-for", options_.stopped_for,
          "a rank that is suspended (SIGSTOP) for longer has failed [60]");
  seconds("--end-within", options_.end_within,
          "longest time from the first rank's end with code 0 to the last's [3600]");
  seconds("--room-within", options_.room_within,
          "longest wait for room in the folder of --save, after a save failed, before a restart [3600]");
  CLI::Option* const local = app_->add_flag(
      "--local", options_.local,
      "start the ranks on this host without MPI; so are those of train_gpt --comm nccl in any case");
  for (const char* of_mpirun : {"--hosts", "--hostfile", "--mpirun", "--mpirun-arg"})
    local->excludes(of_mpirun);
  app_->add_flag("--keep-rank", keep_rank_)->group("");  // what mpirun starts
  number("--start-ranks", start_ranks_, 1, kMaxRanks, "")
      ->group("");  // what this program starts in its place
  app_->footer(kRunHelp);
  return app_;
}

int RunCommand::take_command(int argc, const char* const* argv) {
  if (argc < 2 || std::string_view(argv[1]) != "run") return argc;
  const auto* const end = argv + argc;
  const auto* const mark = std::find(argv, end, std::string_view("--"));
  if (mark != end) options_.command.assign(mark + 1, end);
  return static_cast<int>(mark - argv);
}

int RunCommand::run(std::ostream& err) {
  if (options_.command.empty())
    throw CLI::RequiredError(
        "run: a command behind `--`, such as `sherd run --nproc 4 -- train_gpt --comm mpi`,");
  const bool supervises = !keep_rank_ && start_ranks_ == 0;
  if (supervises && app_->count("--nproc") == 0) throw CLI::RequiredError("run: --nproc");
  report_broken_pipes();
  if (keep_rank_) return keep_rank(options_.command);
  if (start_ranks_ > 0) return start_ranks(start_ranks_, options_.command);
  if (options_.policy.min_ranks > options_.policy.ranks)
    throw CLI::ValidationError("--min-ranks", "is more than --nproc");
  try {
    return run_with_restarts(options_, err);
  } catch (const InvalidArgument& e) {
    throw CLI::ValidationError(e.what());
  }
}

}  // namespace sherd::tools
