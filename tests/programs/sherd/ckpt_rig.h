// Checkpoints for the tests of `sherd ckpt`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include <sherd/base/error.h>
#include <sherd/checkpoint/format/manifest.h>

#include "program.h"
#include "support/make_checkpoint.h"

namespace sherd::tools {

class Ckpt : public ::testing::Test {
 protected:
  /// Uneven rows, one element, none, several dimensions, every float type and integers; optimizer state.
  static std::vector<test::WholeTensor> tensors() {
    using test::WholeTensor;
    std::vector<bf16> halves;
    for (int i = 0; i < 5 * 3; ++i) halves.emplace_back(0.37f * static_cast<float>(i) - 2);
    return {
        WholeTensor::random("tok.weight", {7, 5}, 1),
        WholeTensor::random("blocks.0.qkv.weight", {11, 3}, 2),
        WholeTensor::random("blocks.1.qkv.weight", {11, 3}, 3),
        WholeTensor::random("blocks.1.experts", {2, 3, 5}, 4),
        WholeTensor::of<bf16>("head.weight", {5, 3}, halves),
        WholeTensor::of<float>("scale", {1}, {0.5f}),
        WholeTensor::of<float>("nothing", {0, 4}, {}),
        WholeTensor::of<int64_t>("count", {3}, {int64_t{1} << 60, -1, 0}),
        WholeTensor::random("optim.state.tok.weight.exp_avg", {7, 5}, 5, Section::optim),
        WholeTensor::of<float>("optim.state.tok.weight.step", {1}, {40.0f}, Section::optim),
        WholeTensor::random("optim.state.blocks.0.qkv.weight.momentum_buffer", {11, 3}, 6, Section::optim)};
  }
  static TrainingState training(int64_t step) {
    return {step, 8 * step, 42, {{"muon.momentum", "ema"}, {"routing", "tok.weight  adamw\nscale  adamw\n"}}};
  }
  std::string make(const std::string& name, int ranks, int64_t step = 40,
                   const test::Cut& cut = test::cut_rows,
                   const std::vector<test::WholeTensor>& whole = tensors()) const {
    return test::make_checkpoint(folder_ / name, ranks, whole, training(step), cut).string();
  }
  Finished ckpt(const std::string& arguments) const { return run_sherd(folder_, "ckpt " + arguments); }

  TemporaryFolder folder_;
};

/// Changes one byte of a file.
inline void flip(const std::string& path, int64_t at) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(at);
  const int byte = file.get();
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 1));
  if (!file) throw IoError("cannot flip byte " + std::to_string(at) + " of " + path);
}

/// Makes opening a file an error of the system: it becomes a link to itself.
inline void make_unreadable(const std::string& path) {
  std::filesystem::remove(path);
  std::filesystem::create_symlink(std::filesystem::path(path).filename(), path);
}

/// Gives a manifest a format version of the future; its first bytes are sound.
inline void make_newer(const std::string& manifest) {
  std::string bytes = read_bytes(manifest);
  bytes[8] = 7;
  const uint64_t sum = checksum(bytes.data(), 40);
  bytes.replace(40, sizeof sum, reinterpret_cast<const char*>(&sum), sizeof sum);
  std::ofstream(manifest, std::ios::binary) << bytes;
}

}  // namespace sherd::tools
