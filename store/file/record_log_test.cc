#include "store/file/record_log.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline::file_store {
namespace {

using store::Change;

using testing::ElementsAre;
using testing::IsEmpty;

const char* const kKinds[] = {"", "set", "append", "delete"};

std::string Describe(const Change& change) {
  return absl::StrCat(kKinds[static_cast<int>(change.kind)], " ", change.key, "=", change.value);
}

struct Decoded {
  size_t size = 0;
  std::vector<std::string> changes;
};

Decoded Decode(absl::string_view bytes) {
  Decoded decoded;
  decoded.size =
      DecodeRecords(bytes, [&](Change change) { decoded.changes.push_back(Describe(change)); });
  return decoded;
}

const std::vector<Change> kPair = {{Change::Kind::kSet, "a", "1"},
                                   {Change::Kind::kAppend, "b", std::string(300, 'x')}};
const std::vector<Change> kSingle = {{Change::Kind::kDelete, "a", ""}};

TEST(RecordLogTest, WhatIsEncodedIsDecodedInOrder) {
  const std::string log = EncodeRecord(kPair) + EncodeRecord({}) + EncodeRecord(kSingle);
  const Decoded decoded = Decode(log);
  EXPECT_EQ(decoded.size, log.size());
  EXPECT_THAT(decoded.changes,
              ElementsAre("set a=1", "append b=" + std::string(300, 'x'), "delete a="));
}

TEST(RecordLogTest, ARecordCutShortAnywhereIsNotApplied) {
  const std::string whole = EncodeRecord(kSingle);
  const std::string torn = EncodeRecord(kPair);
  for (size_t size = 0; size < torn.size(); ++size) {
    const Decoded decoded = Decode(whole + torn.substr(0, size));
    EXPECT_EQ(decoded.size, whole.size()) << size;
    EXPECT_THAT(decoded.changes, ElementsAre("delete a=")) << size;
  }
}

TEST(RecordLogTest, ARecordOfWhichAnyByteIsWrongIsNotApplied) {
  const std::string record = EncodeRecord(kPair);
  for (size_t i = 0; i < record.size(); ++i) {
    std::string wrong = record;
    wrong[i] = static_cast<char>(wrong[i] ^ 0x40);
    const Decoded decoded = Decode(wrong);
    EXPECT_EQ(decoded.size, 0) << i;
    EXPECT_THAT(decoded.changes, IsEmpty()) << i;
  }
}

TEST(RecordLogTest, ARunOfZerosIsNoRecord) { EXPECT_EQ(Decode(std::string(4096, '\0')).size, 0); }

TEST(RecordLogTest, AnyBytesAreAccepted) {
  std::mt19937 random(17);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 64, '\0');
    for (char& c : bytes) c = static_cast<char>(random() % 4 == 0 ? random() : 0);
    EXPECT_LE(Decode(bytes).size, bytes.size());
  }
}

}  // namespace
}  // namespace syncline::file_store
