// sherd_bench: performance claims as ratios, measured side by side in one run.
#include <cstdio>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "muon_bench.h"

int main(int argc, char** argv) {
  CLI::App app{"sherd_bench: ratios of times, each pair measured in turn in one run"};
  app.require_subcommand(0, 1);  // 1 would call for a command instead of naming a word that is none
  sherd_bench::MuonBench muon;
  CLI::App* command =
      app.add_subcommand("muon", "Muon's plan entries and forms; a step of Muon beside one of AdamW");
  command->add_option("--ranks", muon.ranks, "ranks of the optimizer phase")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--dim", muon.dim, "width of the transformer")
      ->check(CLI::Range(8, 8192))
      ->capture_default_str();
  command->add_option("--layers", muon.layers, "its blocks")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command->add_option("--rounds", muon.rounds, "measurements of each kind; medians are printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--step-ranks", muon.step_ranks, "ranks of the whole steps")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--tokens", muon.tokens, "tokens of a whole step, a multiple of 256 x --step-ranks")
      ->check(CLI::Range(512, 1 << 24))
      ->capture_default_str();
  command->add_option("--step-rounds", muon.step_rounds, "whole steps of each kind; 0 skips them")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) throw CLI::RequiredError("A command");
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  try {
    sherd_bench::run_muon(muon);
  } catch (const std::exception& e) {
    fmt::print(stderr, "sherd_bench: {}\n", e.what());
    return 1;
  }
  return 0;
}
