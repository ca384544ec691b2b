// sherd_bench: performance claims as ratios, measured side by side in one run.
#include <cstdio>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <sherd/kernels/device/program.h>

#include "checkpoint_bench.h"
#include "copies_bench.h"
#include "device_bench.h"
#include "muon_bench.h"
#include "recompute_bench.h"
#include "soak.h"

namespace {

void add_symmetric_products(CLI::App& command, std::string& way) {
  command
      .add_option(
          "--symmetric-products", way,
          "how 16-bit Newton-Schulz forms them on a GPU: cuBLASLt's blocks, or the kernel for compute "
          "capability 9.0")
      ->check(CLI::IsMember({"blocks", "hopper"}))
      ->capture_default_str();
}

void add_device_options(CLI::App& command, sherd_bench::DeviceBench& bench) {
  command.add_option("--device", bench.device, "what to measure")
      ->check(CLI::IsMember({"cuda", "cpu"}))
      ->capture_default_str();
  command.add_option("--threads", bench.threads, "of a CPU kernel; 0: all cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command.add_option("--size", bench.size, "of the data; full on a GPU, small elsewhere")
      ->check(CLI::IsMember({"small", "full"}));
  command.add_option("--rounds", bench.rounds, "batches of calls; medians are printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.add_option("--json", bench.json, "file for the same figures");
  command.add_flag("--tf32", bench.tf32, "products of fp32 matrices in tf32 (GPU)");
}

}  // namespace

int main(int argc, char** argv) {
  sherd::bound_spinning(argv);
  sherd::reserve_standard_streams();
  CLI::App app{"sherd_bench: ratios of times, each pair measured in turn in one run"};
  app.set_version_flag("--version", [] {
    std::string text = sherd::version_text("sherd_bench");
    text.pop_back();  // CLI11 ends the line
    return text;
  });
  app.require_subcommand(0, 1);  // 1 would call for a command instead of naming a word that is none
  sherd_bench::MuonBench muon;
  CLI::App* muon_command =
      app.add_subcommand("muon", "Muon's plan entries and forms; a step of Muon beside one of AdamW");
  CLI::App* command = muon_command;
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
  command->add_option("--device", muon.device, "what to measure; ranks share the GPUs there are")
      ->check(CLI::IsMember({"cuda", "cpu"}))
      ->capture_default_str();
  add_symmetric_products(*command, muon.symmetric_products);
  sherd_bench::CheckpointBench checkpoint;
  command = app.add_subcommand("checkpoint", "saving beside dd; a step with saves beside one without");
  command->add_option("--folder", checkpoint.folder, "where to write (on the disk in question)")
      ->capture_default_str();
  command->add_option("--gib", checkpoint.gib, "size of the checkpoint")
      ->check(CLI::Range(0.03, 1024.0))
      ->capture_default_str();
  command->add_option("--ranks", checkpoint.ranks, "ranks that write")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_flag("--async", checkpoint.async, "save those from a copy in memory");
  command->add_option("--rounds", checkpoint.rounds, "of dd and saving in turn; 0 skips them")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  command->add_option("--steps", checkpoint.steps, "training steps of each kind; 0 skips them")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  command->add_option("--save-every", checkpoint.save_every, "steps between checkpoints")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  sherd_bench::CopiesBench copies;
  CLI::App* copies_command = app.add_subcommand(
      "copies",
      "comparison of the ranks' copies of weights beside loading them; under mpirun, its processes");
  copies_command->add_option("--folder", copies.folder, "where to write (on the disk in question)")
      ->capture_default_str();
  copies_command->add_option("--gib", copies.gib, "size of the file")
      ->check(CLI::Range(0.01, 1024.0))
      ->capture_default_str();
  copies_command->add_flag("--f32", copies.f32, "store f32, not bf16");
  copies_command->add_option("--tensors", copies.tensors, "of equal sizes")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  copies_command->add_option("--ranks", copies.ranks, "threads of this process")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  copies_command->add_option("--rounds", copies.rounds, "of both in turn; medians are printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  sherd_bench::DeviceBench device;
  CLI::App* device_command =
      app.add_subcommand("device", "kernels beside a copy and a matrix product of the same device");
  CLI::App* newton_schulz_command =
      app.add_subcommand("newton_schulz", "Muon's iteration beside a matrix product of the same device");
  add_device_options(*device_command, device);
  add_device_options(*newton_schulz_command, device);
  newton_schulz_command
      ->add_option("--working", device.working, "type between products; fp16 on a GPU, fp32 elsewhere")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  add_symmetric_products(*newton_schulz_command, device.symmetric_products);
  sherd_bench::RecomputeBench recompute;
  CLI::App* recompute_command = app.add_subcommand(
      "recompute", "a step whose blocks' activations are computed again, beside one that keeps them");
  recompute_command->add_option("--ranks", recompute.ranks, "threads of this process")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  recompute_command->add_option("--dim", recompute.dim, "width of the model, a multiple of --heads")
      ->check(CLI::Range(8, 8192))
      ->capture_default_str();
  recompute_command->add_option("--layers", recompute.layers, "its blocks")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  recompute_command->add_option("--heads", recompute.heads, "of its attention")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  recompute_command->add_option("--seq", recompute.seq, "tokens of a rank's one sequence")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  recompute_command
      ->add_option("--rounds", recompute.rounds, "steps of each kind in turn; medians are printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  sherd_bench::Soak soak;
  CLI::App* soak_command = app.add_subcommand(
      "soak", "memory and queues over many steps of varying shapes; exit code 1 if they grow");
  soak_command->add_option("--ranks", soak.ranks, "threads of this process")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  soak_command->add_option("--steps", soak.steps, "of each run")
      ->check(CLI::Range(2, 1000000))
      ->capture_default_str();
  soak_command->add_option("--settled", soak.settled, "steps after which memory may not grow")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  soak_command->add_option("--dim", soak.dim, "width of the model, a multiple of 4")
      ->check(CLI::Range(8, 8192))
      ->capture_default_str();
  soak_command->add_option("--max-queued", soak.max_queued, "operations the host may be ahead on a stream")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  soak_command->add_option("--growth", soak.growth, "most percent of growth after --settled steps")
      ->check(CLI::Range(0.0, 1000.0))
      ->capture_default_str();
  soak_command->add_option("--unexplained", soak.unexplained, "most percent of memory without an account")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) throw CLI::RequiredError("A command");
    for (const auto& [way, on] : {std::pair{muon.symmetric_products, muon.device},
                                  std::pair{device.symmetric_products, device.device}})
      if (way != "blocks" && on != "cuda")
        throw CLI::ValidationError("--symmetric-products " + way, "of GPUs alone; give --device cuda");
  } catch (const CLI::ParseError& e) {
    if (app.exit(e) != 0) return 2;
    return sherd::finish_stdout("sherd_bench") ? 0 : 1;
  }
  try {
    if (*muon_command) {
      sherd_bench::run_muon(muon);
    } else if (*copies_command) {
      sherd_bench::run_copies(copies);
    } else if (*device_command) {
      sherd_bench::run_device(device);
    } else if (*recompute_command) {
      return sherd_bench::run_recompute(recompute) ? 0 : 1;
    } else if (*soak_command) {
      return sherd_bench::run_soak(soak) ? 0 : 1;
    } else if (*newton_schulz_command) {
      sherd_bench::run_newton_schulz(device);
    } else {
      sherd_bench::run_checkpoint(checkpoint);
    }
  } catch (const std::exception& e) {
    sherd::print_error("sherd_bench", e.what());
    return 1;
  }
  return sherd::finish_stdout("sherd_bench") ? 0 : 1;
}
