// sherd_bench: performance claims as ratios, measured side by side in one run.
#include <sherd/base/program.h>
#include <sherd/kernels/device/build.h>

#include "commands.h"

namespace sherd_bench {

void add_symmetric_products(CLI::App& command, std::string& way, const std::string& device) {
  command
      .add_option("--symmetric-products", way,
                  "how 16-bit Newton-Schulz forms them on a GPU: cuBLASLt's blocks, the kernel for compute "
                  "capability 9.0, or the one that the GPU has")
      ->check(CLI::IsMember({"auto", "blocks", "hopper"}))
      ->capture_default_str();
  command.callback([&way, &device] {
    if (way == "hopper" && device != "cuda")
      throw CLI::ValidationError("--symmetric-products " + way, "of GPUs alone; give --device cuda");
  });
}

}  // namespace sherd_bench

int main(int argc, char** argv) {
  using namespace sherd_bench;
  sherd::bound_spinning(argv);
  sherd::reserve_standard_streams();
  sherd::report_file_size_limit();
  CLI::App app{"sherd_bench: ratios of times, each pair measured in turn in one run"};
  app.set_version_flag("--version", [] {
    std::string text = sherd::version_text("sherd_bench");
    text.pop_back();  // CLI11 ends the line
    return text;
  });
  app.require_subcommand(0, 1);  // 1 would call for a command instead of naming a word that is none
  const Command commands[] = {muon_command(app),          checkpoint_command(app),    device_command(app),
                              newton_schulz_command(app), products_command(app),      soak_command(app),
                              soap_command(app),          training_soak_command(app), windows_command(app),
                              generate_command(app)};
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) throw CLI::RequiredError("A command");
  } catch (const CLI::ParseError& e) {
    if (app.exit(e) != 0) return 2;
    return sherd::finish_stdout("sherd_bench") ? 0 : 1;
  }
  try {
    for (const Command& c : commands)
      if (*c.app && !c.run()) return 1;
  } catch (const std::exception& e) {
    sherd::print_error("sherd_bench", e.what());
    return 1;
  }
  return sherd::finish_stdout("sherd_bench") ? 0 : 1;
}
