#include "plan_command.h"

#include <chrono>
#include <fstream>
#include <functional>
#include <ostream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <sherd/base/error.h>
#include <sherd/base/printable.h>

#include "arguments.h"
#include "measure.h"
#include "plan_compare.h"
#include "plan_report.h"
#include "plan_search.h"
#include "plan_sweep.h"

namespace sherd::tools {
namespace {

constexpr int kUsage = 2;

/// @param mode app: adds to what is there
void write_text(const std::string& path, const std::string& text, std::ios::openmode mode = std::ios::out) {
  std::ofstream file(path, std::ios::binary | mode);
  file << text;
  file.close();
  if (!file) throw IoError(fmt::format("cannot write '{}'; check the path and the disk", path));
}

constexpr const char* kPlanHelp =
    R"(All flags of a run are those of train_gpt (train_gpt --help-all), such as --model, --strategy, --layout, --optimizer,
--muon-mode, --precision, --batch, --seq, --grad-accum, --recompute, --replicas, --tp, --context and --expert-parallel;
further names:
)";

constexpr const char* kPlanExamples =
    R"(Unless they are given: one sequence per data rank and microbatch, sequences of presets of up to 4096 tokens, and bf16 on
GPUs.
Nothing is allocated, and no other rank is needed: the training step of a rank runs on a device that counts and computes
nothing.

  sherd plan --preset llama3-8b --world 8 --hardware h100 --seq 8192 --recompute blocks
  sherd plan --preset kimi-k2 --world 256 --hardware b200 --expert-parallel 32 --compare
  sherd plan --preset llama3-8b --world 8 --hardware h100 --seq 8192 --batch 16 --search

Exit codes: 0; 1 for a plan that failed; 2 for flags and files that cannot be used.

)";

}  // namespace

CLI::App* PlanCommand::add_to(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("plan", "predict memory, bytes and time of a training step");
  sub->add_option("--hardware", flags.hardware,
                  fmt::format("{}, or a file of --measure", fmt::join(hardware_names(), ", ")))
      ->type_name("NAME|FILE")
      ->capture_default_str();
  sub->add_option("--pipeline", flags.pipeline, "stages of a pipeline, planned only; divides --world")
      ->type_name("N")
      ->capture_default_str()
      ->check(whole_number(1, 1024));
  sub->add_option("--params", flags.params,
                  "model as a list of parameters: a JSON file as sherd layout takes it, or a safetensors "
                  "file or folder, whose headers are read")
      ->type_name("PATH");
  sub->add_flag("--compare", compare,
                "plan all strategies, layouts and Muon modes, the fastest that fits first");
  sub->add_flag(
      "--search", flags.search,
      "find the fastest run that fits: all of tp, context, expert-parallel, replicas, outer, strategy, "
      "grad-accum, recompute, layout, prefetch, muon-mode, muon-working, master, state-dtype, grad-dtype and "
      "offload that is not given");
  sub->add_option("--max-tp", flags.max_tp, "with --search: most tensor-parallel ranks; 0: ranks of a host")
      ->type_name("N")
      ->check(whole_number(0, 1024));
  sub->add_flag("--keep-bits", flags.keep_bits, "with --search: change nothing that changes the run's bits");
  sub->add_option("--sweep", sweep,
                  "plan over the number of ranks, doubled from the first to the last, e.g. "
                  "world=8..65536")
      ->type_name("RANGE");
  sub->add_option("--svg", svg, "with --sweep or --search: file for a picture of it")->type_name("FILE");
  sub->add_option("--trace", trace, "file for rank 0's predicted step, for ui.perfetto.dev")
      ->type_name("FILE");
  sub->add_option("--measure", measure,
                  "file for a profile of this machine, measured with --ranks and --threads: products, "
                  "copies, collectives")
      ->type_name("FILE");
  sub->add_flag("--json", json, "print JSON instead of a table");
  sub->allow_extras();
  sub->footer(kPlanHelp + aliases_help() + "\n" + kPlanExamples + kPlanJsonHelp);
  app_ = sub;
  return sub;
}

namespace {

/// A line every ten seconds.
std::function<void()> progress_of_search(std::ostream& err) {
  using Clock = std::chrono::steady_clock;
  return [&err, said = Clock::now(), runs = 0]() mutable {
    ++runs;
    if (Clock::now() - said < std::chrono::seconds(10)) return;
    said = Clock::now();
    err << "sherd plan: " << runs << " dry runs" << std::endl;
  };
}

}  // namespace

int PlanCommand::run(std::ostream& out, std::ostream& err) {
  flags.run = app_->remaining();
  flags.several = compare || !sweep.empty();
  if (flags.search && flags.several) {
    err << "sherd plan: --search: an answer of its own; leave --compare and --sweep out\n";
    return kUsage;
  }
  if (!measure.empty()) flags.hardware = "cpu";  // of the run's own --device
  PlanRequest request;
  try {
    request = parse_plan(flags);
    if (!sweep.empty()) range_ = parse_sweep(sweep);
    if (!svg.empty() && sweep.empty() && !flags.search)
      throw InvalidArgument("--svg: a picture of --sweep or --search; give one of them");
    if (!svg.empty()) write_text(svg, "", std::ios::app);  // fails before the search, if at all
    if (flags.search) found_ = search_plans(request, progress_of_search(err));
  } catch (const InvalidArgument& e) {
    err << "sherd plan: " << printable_lines(e.what()) << "\n";
    return kUsage;
  }
  if (!measure.empty()) {
    write_text(measure, "", std::ios::app);  // fails before the measurement, if at all
    write_text(measure, to_text(measure_machine(request.config)));
    return 0;
  }
  if (!trace.empty()) write_text(trace, predicted_trace(request));
  json ? print_json(request, out) : print_tables(request, out);
  if (!out.flush()) throw IoError("the output could not be written; is the disk full, or the reader gone?");
  return 0;
}

void PlanCommand::print_json(const PlanRequest& request, std::ostream& out) const {
  if (found_) {
    if (!svg.empty()) write_text(svg, draw_search(request, *found_));
    out << search_json(*found_).dump(2) << "\n";
    return;
  }
  nlohmann::ordered_json object = plan_json(request, make_plan(request));
  if (compare) object["candidates"] = candidates_json(compare_plans(request));
  out << object.dump(2) << "\n";
}

void PlanCommand::print_tables(const PlanRequest& request, std::ostream& out) const {
  if (range_) {
    const std::vector<SweepPoint> points = sweep_plans(request, *range_);
    out << sweep_table(points);
    if (!svg.empty()) write_text(svg, draw_sweep(request, points));
    return;
  }
  if (found_) {
    if (!svg.empty()) write_text(svg, draw_search(request, *found_));
    out << search_table(request, *found_);
    return;
  }
  const Plan plan = make_plan(request);
  out << plan_table(request, plan);
  if (!plan.fits) out << remedies_table(request);
  if (compare) out << "\n" << candidates_table(compare_plans(request));
}

}  // namespace sherd::tools
