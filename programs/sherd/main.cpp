// sherd: plans and runs sharded training, manages its checkpoints. `sherd --help` lists the commands.
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/program.h>
#include <sherd/kernels/device/build.h>
#include <sherd/train/settings/other_names.h>

#include "ckpt/ckpt_command.h"
#include "layout/layout_command.h"
#include "plan/plan_command.h"
#include "run/run_command.h"
#include "trace/trace_command.h"

namespace sherd::tools {
namespace {

constexpr int kFailure = 1, kUsage = 2;

// "ckpt verify"
std::string command_of(const CLI::App& app) {
  std::string words;
  for (const CLI::App* at = &app; !at->get_subcommands().empty(); words += at->get_name()) {
    at = at->get_subcommands().front();
    if (!words.empty()) words += ' ';
  }
  return words;
}

// Without the line's end: CLI11 adds one.
std::string version_of_sherd() {
  std::string text = version_text("sherd");
  text.pop_back();
  return text;
}

// What an argument that belongs to no command is, in the order of the command line; CLI11's own text reverses it.
std::string unexpected(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  std::vector<std::string> names;
  for (const CLI::Option* option : command->get_options())
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  const std::vector<std::string_view> known(names.begin(), names.end());
  const std::string words = command_of(app), help = "sherd " + words + (words.empty() ? "" : " ") + "--help";
  std::vector<std::string> lines;
  for (const std::string& word : app.remaining(true))
    lines.push_back(word.starts_with('-')
                        ? fmt::format("{}: unknown flag{}", word, suggestion(word, known))
                        : fmt::format("'{}': neither a command nor the value of a flag", word));
  return fmt::format("{}\n{} says what there is", fmt::join(lines, "\n"), help);
}

int main_of(int argc, const char* const* argv) {
  CLI::App app("sherd: plans and runs sharded training, looks after its checkpoints");
  app.set_version_flag("--version", [] { return version_of_sherd(); });
  app.require_subcommand(0, 1);  // 1 would call for a command instead of naming a word that is none
  LayoutCommand layout;
  const CLI::App* layout_app = layout.add_to(app);
  PlanCommand plan;
  const CLI::App* plan_app = plan.add_to(app);
  CkptCommand ckpt;
  const CLI::App* ckpt_app = ckpt.add_to(app);
  TraceCommand trace;
  const CLI::App* trace_app = trace.add_to(app);
  RunCommand run;
  const CLI::App* run_app = run.add_to(app);
  try {
    app.parse(run.take_command(argc, argv), argv);
    if (app.get_subcommands().empty()) throw CLI::RequiredError("A command");
    if (*ckpt_app && ckpt_app->get_subcommands().empty()) throw CLI::RequiredError("A command of ckpt");
  } catch (const CLI::Success& e) {
    app.exit(e);  // help, or the version
    return finish_stdout("sherd") ? 0 : kFailure;
  } catch (const CLI::ExtrasError&) {
    print_error("sherd", unexpected(app));
    return kUsage;
  } catch (const CLI::ParseError& e) {
    print_error("sherd",
                fmt::format("{}\nsherd --help and sherd COMMAND --help say what there is", e.what()));
    return kUsage;
  }
  try {
    if (*run_app) return run.run(std::cerr);
    if (*plan_app) return plan.run(std::cout, std::cerr);
    if (*ckpt_app) return ckpt.run(std::cout, std::cerr);
    if (*trace_app) trace.run(std::cout);
    if (*layout_app) layout.run(std::cout, std::cerr);
    return 0;
  } catch (const CLI::ParseError& e) {
    print_error("sherd", fmt::format("{}\nsherd run --help says what there is", e.what()));
    return kUsage;
  } catch (const std::bad_alloc&) {
    print_error("sherd " + command_of(app), "out of memory: the system gave no more");
    return kFailure;
  } catch (const std::exception& e) {
    print_error("sherd " + command_of(app), e.what());
    return kFailure;
  }
}

}  // namespace
}  // namespace sherd::tools

int main(int argc, char** argv) {
  sherd::reserve_standard_streams();
  sherd::report_file_size_limit();
  return sherd::tools::main_of(argc, argv);
}
