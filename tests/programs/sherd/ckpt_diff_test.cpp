// `sherd ckpt diff`: the same tensors in other pieces are the same, everything else is found.
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "ckpt_rig.h"
#include "support/message_of.h"

namespace sherd::tools {
namespace {

using nlohmann::json;
using test::WholeTensor;

class CkptDiff : public Ckpt {
 protected:
  static WholeTensor& named(std::vector<WholeTensor>& all, const std::string& name) {
    return *std::find_if(all.begin(), all.end(), [&](auto& t) { return t.name == name; });
  }
  template <class T>
  static void set(WholeTensor& t, size_t element, T value) {
    std::memcpy(t.bytes.data() + element * sizeof(T), &value, sizeof(T));
  }
  /// A has `first`, B has `second` as its only tensor.
  template <class T>
  Finished diff_of(std::vector<T> first, std::vector<T> second, const std::string& flags = "") {
    const auto whole = [](const std::vector<T>& v) {
      return std::vector{WholeTensor::of("x", {static_cast<int64_t>(v.size())}, v)};
    };
    const std::string number = std::to_string(count_++);
    return ckpt("diff " + make("a" + number, 1, 1, test::cut_rows, whole(first)) + " " +
                make("b" + number, 2, 1, test::cut_rows, whole(second)) + " " + flags);
  }
  int count_ = 0;
};

TEST_F(CkptDiff, OtherShardingsAreBitIdentical) {
  const std::string one = make("one", 1);
  const std::string others[] = {make("rows", 3), make("flat", 4, 40, test::cut_flat),
                                make("columns", 2, 40, test::cut_columns),
                                make("many", 16, 40, test::cut_flat)};
  for (const std::string& other : others) {
    for (const std::string& pair : {one + " " + other, other + " " + one}) {
      const Finished f = ckpt("diff " + pair);
      EXPECT_EQ(f.exit_code, 0) << f.out << f.err;
      EXPECT_THAT(f.out, HasSubstr("11 tensors, 219 elements compared: bit-identical\n"));
      EXPECT_EQ(f.err, "");
    }
  }
  EXPECT_THAT(ckpt("diff " + (folder_ / "one") + " " + others[0]).out,
              StartsWith("A  " + one + " (the only one), step 40\nB  " + others[0]));
}

TEST_F(CkptDiff, OneChangedElementIsFound) {
  const std::string a = make("a", 3);
  auto whole = tensors();
  set(named(whole, "blocks.0.qkv.weight"), 3 * 7 + 2, 0.25f);
  float before = 0;
  auto untouched = tensors();
  std::memcpy(&before, named(untouched, "blocks.0.qkv.weight").bytes.data() + 4 * (3 * 7 + 2), 4);
  const std::string b = make("b", 2, 41, test::cut_flat, whole);
  const Finished f = ckpt("diff " + a + " " + b);
  EXPECT_EQ(f.exit_code, 1);
  EXPECT_THAT(f.out, AllOf(HasSubstr("  blocks.0.qkv.weight: 1 of 33 elements differ"),
                           HasSubstr("first at [7, 2]"), HasSubstr("compared: 1 tensor different\n")));
  EXPECT_EQ(f.err, "");
  const json j = json::parse(ckpt("diff --json " + a + " " + b).out);
  EXPECT_EQ(j.at("identical"), false);
  EXPECT_EQ(j.at("within_tolerance"), nullptr);
  EXPECT_EQ(j.at("tensors_compared"), 11);
  ASSERT_EQ(j.at("different").size(), 1u);
  const json e = j.at("different")[0].at("elements");
  EXPECT_EQ(e.at("differing"), 1);
  EXPECT_EQ(e.at("of"), 33);
  EXPECT_EQ(e.at("first"), json::parse("[7, 2]"));
  const double absolute = std::abs(double{before} - 0.25);
  EXPECT_DOUBLE_EQ(e.at("max_absolute"), absolute);
  EXPECT_DOUBLE_EQ(e.at("max_relative"), absolute / std::max(std::abs(double{before}), 0.25));
}

TEST_F(CkptDiff, NamesShapesAndTypes) {
  auto whole = tensors();
  std::erase_if(whole, [](auto& t) { return t.name == "scale"; });
  named(whole, "tok.weight").shape = {5, 7};
  named(whole, "blocks.1.experts").name = "blocks.1.stack";
  set<int64_t>(named(whole, "count"), 0, (int64_t{1} << 60) + 1);
  const Finished f = ckpt("diff " + make("a", 2) + " " + make("b", 1, 40, test::cut_rows, whole));
  EXPECT_EQ(f.exit_code, 1);
  EXPECT_THAT(f.out, AllOf(HasSubstr("  scale: only in A, [1] f32\n"),
                           HasSubstr("  tok.weight: [7, 5] f32 against [5, 7] f32\n"),
                           HasSubstr("  blocks.1.experts: only in A, [2, 3, 5] f32\n"),
                           HasSubstr("  blocks.1.stack: only in B, [2, 3, 5] f32\n"),
                           HasSubstr("  count: 1 of 3 elements differ, at most by 1 ("),
                           HasSubstr("5 tensors different")));
}

TEST_F(CkptDiff, BitsFirst) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(diff_of<float>({nan, 1, -inf}, {nan, 1, -inf}).exit_code, 0);
  const Finished zeros = diff_of<float>({0.0f, 1}, {-0.0f, 1});
  EXPECT_EQ(zeros.exit_code, 1);
  EXPECT_THAT(zeros.out, HasSubstr("1 of 2 elements differ, at most by 0 (0 relative)"));
  EXPECT_EQ(diff_of<float>({0.0f, 1}, {-0.0f, 1}, "--tolerance 0").exit_code, 0);
  EXPECT_EQ(diff_of<float>({nan, 1}, {-nan, 1}).exit_code, 1);
  EXPECT_EQ(diff_of<float>({nan, 1}, {-nan, 1}, "--tolerance 0").exit_code, 0);
  for (const float other : {nan, inf, -inf}) {
    const Finished f = diff_of<float>({1, 2}, {1, other}, "--tolerance 1e9 --json");
    EXPECT_EQ(f.exit_code, 1);
    EXPECT_EQ(json::parse(f.out).at("different")[0].at("elements").at("max_relative"), nullptr);
  }
  EXPECT_EQ(diff_of<float>({inf}, {-inf}, "--tolerance 9").exit_code, 1);
}

TEST_F(CkptDiff, Tolerance) {
  EXPECT_EQ(diff_of<double>({1, 100}, {1, 101}, "--tolerance 0.01").exit_code, 0);  // 1 / 101
  const Finished f = diff_of<double>({1, 100}, {1, 101}, "--tolerance 0.0099");
  EXPECT_EQ(f.exit_code, 1);
  EXPECT_THAT(f.out, HasSubstr("at most by 1 (0.0099 relative), first at [1]"));
  EXPECT_THAT(diff_of<double>({1, 100}, {1, 101}, "--tolerance 0.01").out, HasSubstr("within 0.01 relative"));
}

TEST_F(CkptDiff, DtypesMayDifferWithATolerance) {
  const auto make_one = [&](const std::string& name, const WholeTensor& t) {
    return make(name, 1, 1, test::cut_rows, {t});
  };
  const std::string a = make_one("a", WholeTensor::of<float>("x", {2}, {0.5f, 1.001f}));
  const std::string b = make_one("b", WholeTensor::of<bf16>("x", {2}, {bf16(0.5f), bf16(1.001f)}));
  const std::string c = make_one("c", WholeTensor::of<float>("x", {2}, {0.5f, 1}));
  const Finished f = ckpt("diff " + a + " " + b);
  EXPECT_EQ(f.exit_code, 1);
  EXPECT_THAT(f.out, HasSubstr("  x: f32 against bf16, 1 of 2 elements differ"));
  EXPECT_EQ(ckpt("diff --tolerance 0.01 " + a + " " + b).exit_code, 0);
  EXPECT_EQ(ckpt("diff --tolerance 0.0001 " + a + " " + b).exit_code, 1);
  const Finished same = ckpt("diff " + c + " " + b);
  EXPECT_EQ(same.exit_code, 1);
  EXPECT_THAT(same.out, HasSubstr("  x: f32 against bf16, equal values\n"));
}

TEST_F(CkptDiff, SectionsApart) {
  auto whole = tensors();
  set(named(whole, "optim.state.tok.weight.step"), 0, 41.0f);
  const std::string pair = make("a", 2) + " " + make("b", 2, 40, test::cut_rows, whole);
  EXPECT_EQ(ckpt("diff " + pair).exit_code, 1);
  EXPECT_EQ(ckpt("diff --model-only " + pair).exit_code, 0);
  EXPECT_THAT(ckpt("diff --model-only " + pair).out, HasSubstr("8 tensors, 150 elements compared"));
  EXPECT_EQ(ckpt("diff --optim-only " + pair).exit_code, 1);
  const std::string a = make("c", 2);
  const Finished none = ckpt("diff --optim-only " + a + "/model " + a + "/model");
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err,
              AllOf(StartsWith("sherd ckpt diff: nothing to compare"), HasSubstr("optimizer state")));
  // `optim` by itself is known for what it is; so is `model`, which has no file with the empty tensor.
  EXPECT_EQ(ckpt("diff --optim-only " + a + " " + a + "/optim").exit_code, 0);
  EXPECT_THAT(ckpt("diff --model-only " + a + " " + a + "/model").out, HasSubstr("nothing: only in A"));
}

TEST_F(CkptDiff, DamageIsAnErrorThatNamesItsPlace) {
  const std::string a = make("a", 2), b = make("b", 2);
  const std::string file = "model/shard-00001-model-00001-of-00001.safetensors";
  flip(b + "/" + file, static_cast<int64_t>(std::filesystem::file_size(b + "/" + file)) - 1);
  const Finished f = ckpt("diff " + a + " " + b);
  EXPECT_EQ(f.exit_code, 1);
  EXPECT_EQ(f.out, "");
  EXPECT_THAT(f.err, AllOf(StartsWith("sherd ckpt diff: "), HasSubstr(file)));
}

TEST_F(CkptDiff, MoreThanOneChunk) {
  // Two of the chunks that are compared at a time, and pieces that end within one.
  std::vector<float> values(size_t{1} << 20);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000);
  const auto whole = [&] { return std::vector{WholeTensor::of("x", {1 << 10, 1 << 10}, values)}; };
  const std::string a = make("a", 3, 1, test::cut_rows, whole());
  values[900'001] += 1;
  values[600'000] += 1;
  const Finished f = ckpt("diff --json " + a + " " + make("b", 2, 1, test::cut_columns, whole()));
  EXPECT_EQ(f.exit_code, 1);
  const json e = json::parse(f.out).at("different")[0].at("elements");
  EXPECT_EQ(e.at("differing"), 2);
  EXPECT_EQ(e.at("first"), json({600'000 / 1024, 600'000 % 1024}));
}

}  // namespace
}  // namespace sherd::tools
