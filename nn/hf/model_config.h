// config.json of a Hugging Face folder: what model it describes, as far as nn/models can build it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/checkpoint/files/file_system.h>
#include <sherd/kernels/device/dtype.h>
#include <sherd/nn/models/description.h>

namespace sherd::hf {

struct ModelConfig {
  /// The file, for messages.
  std::string source;
  nn::ModelDescription description;
  /// Stored dtype of the weights [dtype, before version 5 torch_dtype], if the file names it.
  std::optional<DType> dtype;
  /// Heads for multi-token prediction that the folder has [num_nextn_predict_layers]. ModelDescription::mtp_layers, which
  /// decides whether one is built, is 0 for the caller to set.
  int64_t mtp_layers = 0;
  /// Settings that training does not follow (dropout, say), a line each, for a program to print once.
  std::vector<std::string> notes;
};

/// Reads `folder`/config.json. Keys that are absent are what the classes of transformers 5 take for them, but
/// for the sizes of the model, which must be there; both forms of the rotary settings are read
/// (rope_parameters; rope_theta and rope_scaling). Keys that the family's class does not know are not looked
/// at, as there.
/// @throws InvalidArgument in one line that names the file and every key that cannot be followed, with
/// its value and what to do; IoError.
ModelConfig read_model_config(const std::filesystem::path& folder, FileSystem& files = FileSystem::posix());
/// The text of that file. @throws IoError, also for one of more than 16 MiB, and a link out of the folder.
std::string read_model_text(const std::filesystem::path& folder, FileSystem& files = FileSystem::posix());
/// The same of the file's text.
ModelConfig parse_model_config(std::string_view text, const std::string& source);

/// Returns the tokens that end a text [eos_token_id] by `folder`/generation_config.json, without which by config.json; empty
/// where neither names one. @throws InvalidArgument naming the file for another value; IoError.
std::vector<int32_t> end_of_text(const std::filesystem::path& folder,
                                 FileSystem& files = FileSystem::posix());

/// @throws InvalidArgument, naming key and value, for sequences of more tokens than the model has positions. With rotary
/// scaling "dynamic" transformers computes longer ones with other frequencies for every length; these are refused, too.
void require_sequence(const ModelConfig& config, int64_t seq);

/// A config.json from which transformers (4.50 and later) and read_model_config() make the same model. Tokens
/// with a meaning (bos_token_id and the like) are not in it.
/// @param dtype of the weights beside it.
/// @throws InvalidArgument for a description that no folder of its family can say, such as biases that
/// it lacks.
std::string model_config_text(const nn::ModelDescription& description, DType dtype);

}  // namespace sherd::hf
