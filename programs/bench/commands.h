// The commands of sherd_bench. Each adds its options; what they mean is in its source.
#pragma once

#include <functional>
#include <string>

#include <CLI/CLI.hpp>

namespace sherd_bench {

struct Command {
  CLI::App* app;
  /// Called once the command line is parsed. Returns whether what the command judges holds: otherwise exit code 1.
  std::function<bool()> run;
};

/// Bytes per second of checkpoints beside dd's, and what saving behind training costs a step.
Command checkpoint_command(CLI::App& app);
/// Kernels beside a copy and a matrix product of the same device.
Command device_command(CLI::App& app);
/// Greedy texts by batch.
Command generate_command(CLI::App& app);
/// Muon's optimizer phase by plan entry and form, and a whole step beside one of AdamW.
Command muon_command(CLI::App& app);
/// Five of Jordan's steps on the shapes of transformers' matrices, beside a matrix product.
Command newton_schulz_command(CLI::App& app);
/// The products of a model's matrices, in fp32 and bf16.
Command products_command(CLI::App& app);
/// KL-SOAP's step on CPUs beside its FLOPs at the rates of products and QR of the same run.
Command soap_command(CLI::App& app);
/// Many steps of varying shapes: what a long run must not let grow.
Command soak_command(CLI::App& app);

/// State in a file passed through windows, beside plain copies of the file.
Command windows_command(CLI::App& app);

/// A run of many steps and saves: its memory must stay flat.
Command training_soak_command(CLI::App& app);

/// Adds --symmetric-products, which a device other than "cuda" refuses.
void add_symmetric_products(CLI::App& command, std::string& way, const std::string& device);

}  // namespace sherd_bench
