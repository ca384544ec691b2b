// `sherd ckpt`: flags, help; and what its parts do with numbers.
#include <limits>

#include "arguments.h"
#include "ckpt/elements.h"
#include "ckpt_rig.h"
#include "support/message_of.h"

namespace sherd::tools {
namespace {

using CkptArguments = Ckpt;

TEST_F(CkptArguments, WrongFlagsExitWith2) {
  for (const char* arguments : {"",
                                "frobnicate",
                                "inspect",
                                "inspect a b",
                                "inspect a --frob",
                                "verify",
                                "verify a --json",
                                "diff a",
                                "diff a b c",
                                "diff a b --model-only --optim-only",
                                "diff a b --tolerance",
                                "diff a b --tolerance x",
                                "diff a b --tolerance -1",
                                "diff a b --tolerance inf",
                                "diff a b --tolerance nan",
                                "diff a b --tolerance 1x",
                                "export a",
                                "export a b --dtype f8",
                                "export a b --max-shard-size 0",
                                "export a b --max-shard-size 5XB",
                                "export a b --max-shard-size 99999999999GB",
                                "export a b.safetensors --max-shard-size 5GB",
                                "import a",
                                "import a b --step -1",
                                "import a b --step x",
                                "reshard a b",
                                "reshard a b --world 0",
                                "reshard a --world 2",
                                "reshard a b --world 65537",
                                "reshard a b --world 2.5",
                                "prune a",
                                "prune a --keep 0",
                                "prune --keep 1",
                                "inspect a verify b"}) {
    const Finished f = ckpt(arguments);
    EXPECT_EQ(f.exit_code, 2) << arguments << f.err;
    EXPECT_EQ(f.out, "") << arguments;
    EXPECT_THAT(f.err, StartsWith("sherd: ")) << arguments;
  }
  EXPECT_THAT(ckpt("").err, HasSubstr("A command of ckpt is required"));
  EXPECT_THAT(ckpt("frobnicate").err, HasSubstr("'frobnicate': neither a command nor the value of a flag"));
  EXPECT_THAT(ckpt("reshard a b --world 0").err, HasSubstr("from 1 to 65536"));
  EXPECT_THAT(ckpt("export a b --dtype f8").err, HasSubstr("must be fp32, bf16 or fp16"));
  EXPECT_THAT(ckpt("export a b --max-shard-size 0").err, HasSubstr("5GB or 512MiB"));
  EXPECT_THAT(ckpt("export a b.safetensors --max-shard-size 5GB").err, HasSubstr("OUT is one file"));
}

TEST_F(CkptArguments, Help) {
  const Finished all = ckpt("--help");
  EXPECT_EQ(all.exit_code, 0);
  for (const char* command : {"inspect", "verify", "diff", "export", "import", "reshard", "prune"}) {
    EXPECT_THAT(all.out, HasSubstr(command));
    const Finished f = ckpt(std::string(command) + " --help");
    EXPECT_EQ(f.exit_code, 0) << command;
    EXPECT_EQ(f.err, "");
  }
  EXPECT_THAT(ckpt("inspect --help").out, HasSubstr("pieces[]"));
  EXPECT_THAT(ckpt("diff --help").out, HasSubstr("within_tolerance"));
}

TEST_F(CkptArguments, Bytes) {
  EXPECT_EQ(parse_bytes("1"), 1);
  EXPECT_EQ(parse_bytes("17B"), 17);
  EXPECT_EQ(parse_bytes("5GB"), 5'000'000'000);
  EXPECT_EQ(parse_bytes("2KiB"), 2048);
  EXPECT_EQ(parse_bytes("8TiB"), int64_t{8} << 40);
  for (const char* wrong : {"", "GB", "-1", "0", "1.5GB", "5gb", "5 GB", "9223372036854775807KB", "1e9"})
    EXPECT_THROW(parse_bytes(wrong), InvalidArgument) << wrong;
}

TEST_F(CkptArguments, ConversionNamesTheFirstLostValue) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> from = {1, inf, std::numeric_limits<float>::quiet_NaN(), -65520, 65519};
  std::vector<f16> to(from.size());
  EXPECT_EQ(convert(from.data(), DType::f32, to.data(), DType::f16, 5), 3);
  EXPECT_EQ(convert(from.data(), DType::f32, to.data(), DType::f16, 3), std::nullopt);
  EXPECT_EQ(static_cast<float>(to[0]), 1);
  EXPECT_EQ(static_cast<float>(to[1]), inf);
  EXPECT_NE(static_cast<float>(to[2]), static_cast<float>(to[2]));
  const double wide[] = {1e300, 0.1};
  float narrow[2] = {};
  EXPECT_EQ(convert(wide, DType::f64, narrow, DType::f32, 2), 0);
  EXPECT_EQ(narrow[1], 0.1f);
  EXPECT_THROW(convert(from.data(), DType::f32, to.data(), DType::i32, 1), InvalidArgument);
}

}  // namespace
}  // namespace sherd::tools
