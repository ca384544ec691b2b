// sherd: plans and inspects sharded training. `sherd --help` lists the commands.
#include <exception>
#include <iostream>

#include <fmt/format.h>

#include "layout_command.h"

namespace sherd::tools {
namespace {

constexpr int kFailure = 1, kUsage = 2;

int main_of(int argc, const char* const* argv) {
  CLI::App app("sherd: plans and inspects sharded training");
  app.require_subcommand(0, 1);  // 1 would call for a command instead of naming a word that is none
  LayoutCommand layout;
  const CLI::App* layout_app = layout.add_to(app);
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) throw CLI::RequiredError("A command");
  } catch (const CLI::Success& e) {
    return app.exit(e);  // help
  } catch (const CLI::ParseError& e) {
    fmt::print(stderr, "sherd: {}\nsherd --help and sherd COMMAND --help say what there is\n", e.what());
    return kUsage;
  }
  try {
    if (*layout_app) layout.run(std::cout, std::cerr);
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "sherd {}: {}\n", app.get_subcommands().front()->get_name(), e.what());
    return kFailure;
  }
}

}  // namespace
}  // namespace sherd::tools

int main(int argc, char** argv) { return sherd::tools::main_of(argc, argv); }
