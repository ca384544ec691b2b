// Event files, read back by a parser of frames and of Protobuf's wire format that shares nothing with the
// writer.
#include <sherd/train/report/event_writer.h>

#include <bit>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <sherd/base/error.h>
#include <sherd/train/report/detail/crc32c.h>

#include "support/message_of.h"
#include "temporary_folder.h"
#include "train/report/step_results.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;
using test::result_of;

// Bit by bit, from the definition.
uint32_t slow_crc32c(const std::string& bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82f63b78u : crc >> 1;
  }
  return ~crc;
}

class Bytes {
 public:
  explicit Bytes(std::string bytes) : bytes_(std::move(bytes)) {}
  bool empty() const { return at_ >= bytes_.size(); }
  std::string take(size_t n) {
    if (n > bytes_.size() - at_) throw std::runtime_error("the bytes end early");
    at_ += n;
    return bytes_.substr(at_ - n, n);
  }
  uint64_t fixed(size_t n) {
    uint64_t value = 0;
    const std::string bytes = take(n);
    for (size_t i = 0; i < n; ++i) value |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
    return value;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1)[0]);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
  }

 private:
  std::string bytes_;
  size_t at_ = 0;
};

struct WireField {
  uint64_t number = 0;
  std::string bytes;  // of a message or text
};
/// Fields by number: numbers as their bits, texts and messages as bytes.
std::multimap<uint64_t, WireField> wire_fields_of(const std::string& message) {
  std::multimap<uint64_t, WireField> fields;
  for (Bytes bytes(message); !bytes.empty();) {
    const uint64_t key = bytes.varint();
    WireField field;
    if (key % 8 == 0) field.number = bytes.varint();
    if (key % 8 == 1) field.number = bytes.fixed(8);
    if (key % 8 == 2) field.bytes = bytes.take(bytes.varint());
    if (key % 8 == 5) field.number = bytes.fixed(4);
    fields.emplace(key / 8, field);
  }
  return fields;
}

struct ReadEvent {
  double wall_time = 0;
  int64_t step = 0;
  std::string version;
  std::map<std::string, float> scalars;
  bool starts = false;
};

std::vector<ReadEvent> read_events(const std::string& path) {
  std::vector<ReadEvent> events;
  for (Bytes file(read_bytes(path)); !file.empty();) {
    const auto checked = [&](size_t n) {
      const std::string bytes = file.take(n);
      const uint32_t crc = slow_crc32c(bytes);
      EXPECT_EQ(file.fixed(4), ((crc >> 15 | crc << 17) + 0xa282ead8u)) << "masked checksum";
      return bytes;
    };
    const std::string data = checked(8);
    ReadEvent event;
    for (const auto& [number, field] : wire_fields_of(checked(Bytes(data).fixed(8)))) {
      if (number == 1) event.wall_time = std::bit_cast<double>(field.number);
      if (number == 2) event.step = static_cast<int64_t>(field.number);
      if (number == 3) event.version = field.bytes;
      if (number == 7) event.starts = wire_fields_of(field.bytes).find(1)->second.number == 1;
      if (number != 5) continue;
      for (const auto& [one, value] : wire_fields_of(field.bytes)) {
        const auto scalar = wire_fields_of(value.bytes);
        if (!scalar.contains(1) || !scalar.contains(2))
          throw std::runtime_error("a scalar lacks its name or value");
        // Zeros, too, are to be there: readers drop scalars without a value.
        event.scalars[scalar.find(1)->second.bytes] =
            std::bit_cast<float>(static_cast<uint32_t>(scalar.find(2)->second.number));
      }
    }
    events.push_back(event);
  }
  return events;
}

std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path().string());
  return files;
}

TEST(Crc32c, HasThePublishedValues) {
  EXPECT_EQ(detail::crc32c("123456789"), 0xe3069283u);              // the check value of catalogues of CRCs
  EXPECT_EQ(detail::crc32c(std::string(32, '\0')), 0x8a9136aau);    // RFC 3720, B.4
  EXPECT_EQ(detail::crc32c(std::string(32, '\xff')), 0x62a8ab43u);  // RFC 3720, B.4
  EXPECT_EQ(detail::crc32c(""), 0u);
}

TEST(EventWriter, EveryFigureOfAStepIsThere) {
  const TemporaryFolder folder;
  EventWriter writer(folder / "new/run", 0);
  StepResult step = result_of(1);
  step.lr = 1e-3;
  step.grad_norm = 0.75f;
  writer.write(step);
  step = result_of(200);
  step.eval_loss = 2.25;
  step.flops_per_s = 3e12;
  step.mfu = 0.5;
  step.product_share = 0.75;
  step.loss = std::numeric_limits<double>::infinity();
  writer.write(step);
  writer.write_evaluation(201, 0);
  EXPECT_EQ(writer.failure(), "");

  ASSERT_EQ(files_in(folder / "new/run"), std::vector{writer.path()});
  EXPECT_THAT(fs::path(writer.path()).filename().string(), testing::StartsWith("events.out.tfevents."));
  const std::vector<ReadEvent> events = read_events(writer.path());
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_GT(events[0].wall_time, 1.6e9);
  EXPECT_TRUE(events[1].starts);
  EXPECT_EQ(events[1].step, 1);
  EXPECT_EQ(events[2].step, 1);
  EXPECT_EQ(events[2].scalars.at("loss"), 2.5f);
  EXPECT_EQ(events[2].scalars.at("lr"), 1e-3f);
  EXPECT_EQ(events[2].scalars.at("grad_norm"), 0.75f);
  EXPECT_EQ(events[2].scalars.at("tokens_per_s"), 45230.0f);
  for (const char* absent : {"eval_loss", "eval_ppl", "flops_per_s", "mfu", "product_share", "save_ms"})
    EXPECT_FALSE(events[2].scalars.contains(absent)) << absent;
  EXPECT_EQ(events[3].step, 200);
  EXPECT_EQ(events[3].scalars.at("eval_loss"), 2.25f);
  EXPECT_FLOAT_EQ(events[3].scalars.at("eval_ppl"), 9.4877358f);  // e^2.25
  EXPECT_EQ(events[3].scalars.at("flops_per_s"), 3e12f);
  EXPECT_EQ(events[3].scalars.at("mfu"), 0.5f);
  EXPECT_EQ(events[3].scalars.at("product_share"), 0.75f);
  EXPECT_EQ(events[3].scalars.at("loss"), std::numeric_limits<float>::infinity());
  EXPECT_EQ(events[4].scalars, (std::map<std::string, float>{{"eval_loss", 0.0f}, {"eval_ppl", 1.0f}}));
}

TEST(EventWriter, EachRunHasAFileOfItsOwn) {
  const TemporaryFolder folder;
  const EventWriter first(folder.path(), 0), second(folder.path(), 10);
  EXPECT_NE(first.path(), second.path());
  EXPECT_EQ(files_in(folder.path()).size(), 2u);
  const std::vector<ReadEvent> events = read_events(second.path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].step, 11) << "of the first run's, readers keep steps 1 to 10";
}

TEST(EventWriter, FoldersThatCannotBeAreErrors) {
  const TemporaryFolder folder;
  const std::string file = folder.write("file", "");
  EXPECT_THAT(message_of<IoError>([&] { EventWriter writer(file + "/below", 0); }),
              HasSubstr(file + "/below"));
}

}  // namespace
}  // namespace sherd
