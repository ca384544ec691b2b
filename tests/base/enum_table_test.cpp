#include <sherd/base/enum_table.h>

#include <gmock/gmock.h>

#include <sherd/base/error.h>

namespace sherd {
namespace {

enum class Fruit { apple, pear, plum };
constexpr EnumTable<Fruit, 3> kFruits{"apple", "pear", "plum"};

TEST(EnumTable, NamesAreParsedBack) {
  for (const Fruit f : {Fruit::apple, Fruit::pear, Fruit::plum})
    EXPECT_EQ(kFruits.parse("fruit", kFruits.name(f)), f);
  EXPECT_STREQ(kFruits.name(static_cast<Fruit>(3)), "?");
}

TEST(EnumTable, AnUnknownNameIsRefusedWithTheLegalOnes) {
  try {
    kFruits.parse("fruit", "Pear");
    FAIL();
  } catch (const InvalidArgument& e) {
    EXPECT_STREQ(e.what(), "fruit 'Pear' is unknown; use apple, pear or plum");
  }
}

}  // namespace
}  // namespace sherd
