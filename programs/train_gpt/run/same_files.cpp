#include "train_gpt/run/same_files.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/checkpoint/resume.h>
#include <sherd/checkpoint/same_copies.h>

#include "train_gpt/model/model_source.h"
#include "train_gpt/run/same_flags.h"
#include "train_gpt/run/windows.h"

namespace train_gpt {
namespace {

bool reads_data(const TrainConfig& c) { return c.trains() || c.eval_only; }

std::shared_ptr<const sherd::TokenWindows> windows_of(const TrainConfig& c) {
  if (!reads_data(c)) return nullptr;
  auto windows = open_windows(c);
  if ((c.eval_every > 0 || c.eval_only) && windows->held_out_count() == 0)
    throw sherd::IoError(fmt::format(
        "{}: too few to hold windows of {} out for {}: 50 windows or more are needed, or --valid-tokens",
        windows->summary(), c.seq, c.eval_only ? "--eval-only" : "--eval-every"));
  return windows;
}

std::string text_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& e) {
    return e.what();
  }
}

std::vector<sherd::FileCopy> data_copies(const RunInputs& inputs) {
  const TrainConfig& c = inputs.config;
  if (!reads_data(c)) return {};
  const char* const flag = !c.sft.empty() ? "--sft" : c.tokens.empty() ? "--data" : "--tokens";
  const std::string& path = !c.sft.empty() ? c.sft : c.tokens.empty() ? c.data : c.tokens;
  if (!inputs.windows) return {{flag, path, 0, text_of(inputs.failure)}};
  try {
    return inputs.windows->copies();
  } catch (const sherd::Error& e) {
    return {{flag, path, 0, e.what()}};
  }
}

void check_same_files(const sherd::RankContext& rank, const RunInputs& inputs) {
  const TrainConfig& c = inputs.config;
  std::vector<sherd::FileCopy> copies = model_copies(c);
  for (sherd::FileCopy& copy : data_copies(inputs)) copies.push_back(std::move(copy));
  if (!c.resume.empty()) {
    sherd::FileCopy copy = sherd::checkpoint_copy(*rank.world, c.resume);
    copy.name = "--resume, " + copy.name;
    copies.push_back(std::move(copy));
  }
  sherd::require_same_copies(*rank.world, copies);
}

}  // namespace

RunInputs read_inputs(const TrainConfig& config) {
  RunInputs inputs{config, nullptr, nullptr};
  try {
    inputs.windows = windows_of(config);
    inputs.config = with_model_files(config);
  } catch (...) {
    if (config.comm == sherd::BackendKind::local) throw;
    inputs.failure = std::current_exception();
  }
  return inputs;
}

void check_same_inputs(const sherd::RankContext& rank, const RunInputs& inputs) {
  if (inputs.config.comm == sherd::BackendKind::local) return;
  check_same_flags(rank, inputs.config, [&] { check_same_files(rank, inputs); });
  if (inputs.failure) std::rethrow_exception(inputs.failure);
}

}  // namespace train_gpt
