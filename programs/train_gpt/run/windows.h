// The data that the flags name.
#pragma once

#include <memory>

#include <sherd/train/data/token_windows.h>

#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// Windows of --tokens, rows of --sft, or windows of the text --data. @throws sherd::IoError, sherd::InvalidArgument as
/// TokenWindows.
std::shared_ptr<const sherd::TokenWindows> open_windows(const TrainConfig& config);

/// Held-out windows that an evaluation reads, for TokenWindows::evaluation_windows(); 0: all.
int64_t evaluation_windows(const TrainConfig& config);

/// "nats per token", or per byte.
const char* loss_unit(const TrainConfig& config);

}  // namespace train_gpt
