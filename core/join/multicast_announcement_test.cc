#include "core/join/multicast_announcement.h"

#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::join {
namespace {

using ::testing::HasSubstr;

MulticastAnnouncement Example() {
  MulticastAnnouncement a;
  a.job = "a job: with \n and \0 and 3:xyz";
  a.size = 7;
  a.rank = 3;
  a.id = std::string(kProcessIdBytes, '\xff');
  a.view = std::string(kProcessIdBytes, '\0');
  a.peer = base::IdentifyThisProcess().value();
  a.store = "10.0.0.1:4711";
  return a;
}

void ExpectSame(const MulticastAnnouncement& a, const MulticastAnnouncement& b) {
  EXPECT_EQ(a.job, b.job);
  EXPECT_EQ(a.size, b.size);
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_EQ(a.id, b.id);
  EXPECT_EQ(a.view, b.view);
  EXPECT_EQ(a.peer.ToString(), b.peer.ToString());
  EXPECT_EQ(a.peer.identity, b.peer.identity);
  EXPECT_EQ(a.store, b.store);
}

TEST(AnnouncementTest, WhatIsSealedIsWhatIsOpened) {
  for (const char* secret : {"", "s3cret"}) {
    const std::string datagram = Example().Seal(secret);
    EXPECT_LE(datagram.size(), kMaxAnnouncementBytes);
    auto opened = MulticastAnnouncement::Open(datagram, secret);
    ASSERT_TRUE(opened.ok()) << opened.status();
    ExpectSame(*opened, Example());
  }
}

TEST(AnnouncementTest, WhatIsEncryptedIsReadByThoseWhoShareTheSecret) {
  const std::string datagram = Example().Seal("s3cret", true);
  EXPECT_LE(datagram.size(), kMaxAnnouncementBytes);
  EXPECT_EQ(datagram.find("10.0.0.1"), std::string::npos);
  EXPECT_NE(Example().Seal("s3cret").find("10.0.0.1"), std::string::npos);
  auto opened = MulticastAnnouncement::Open(datagram, "s3cret", true);
  ASSERT_TRUE(opened.ok()) << opened.status();
  ExpectSame(*opened, Example());
  const auto refused = [](const std::string& bytes, const char* secret, bool is_encrypted) {
    return std::string(MulticastAnnouncement::Open(bytes, secret, is_encrypted).status().message());
  };
  EXPECT_THAT(refused(datagram, "another", true), HasSubstr("with another secret"));
  EXPECT_THAT(refused(datagram, "s3cret", false), HasSubstr("it is encrypted; SYNCLINE_TLS"));
  EXPECT_THAT(refused(Example().Seal("s3cret"), "s3cret", true),
              HasSubstr("it is not encrypted; SYNCLINE_TLS"));
  for (size_t i = 0; i < datagram.size(); ++i) {
    std::string changed = datagram;
    changed[i] ^= 1;
    EXPECT_FALSE(MulticastAnnouncement::Open(changed, "s3cret", true).ok()) << i;
    EXPECT_FALSE(MulticastAnnouncement::Open(datagram.substr(0, i), "s3cret", true).ok()) << i;
  }
}

TEST(AnnouncementTest, TheLongestJobNameFitsInADatagram) {
  MulticastAnnouncement a = Example();
  a.job = std::string(kMaxJobName, 'x');
  a.peer.host = std::string(255, 'h');
  a.store = absl::StrCat(std::string(39, 'f'), ":65535");
  EXPECT_TRUE(MulticastAnnouncement::Open(a.Seal("s"), "s").ok());
  EXPECT_TRUE(MulticastAnnouncement::Open(a.Seal("s", true), "s", true).ok());
}

TEST(AnnouncementTest, OnlyThoseWhoShareTheSecretAreHeard) {
  auto refused = [](const std::string& datagram, const char* secret, const char* why) {
    absl::Status status = MulticastAnnouncement::Open(datagram, secret).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kNetwork) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  };
  refused(Example().Seal("theirs"), "ours", "does not prove the job's secret");
  refused(Example().Seal(""), "ours", "does not prove the job's secret");
  refused(Example().Seal("theirs"), "", "this process does not have");
}

TEST(AnnouncementTest, EveryChangedByteIsNoticedIfThereIsASecret) {
  const std::string datagram = Example().Seal("s");
  for (size_t i = 0; i < datagram.size(); ++i) {
    std::string changed = datagram;
    changed[i] ^= 1;
    EXPECT_FALSE(MulticastAnnouncement::Open(changed, "s").ok()) << i;
  }
}

TEST(AnnouncementTest, WhatIsCutOrLongerIsRefused) {
  const std::string datagram = Example().Seal("");
  for (size_t size = 0; size < datagram.size(); ++size) {
    EXPECT_FALSE(MulticastAnnouncement::Open(datagram.substr(0, size), "").ok()) << size;
  }
  EXPECT_FALSE(MulticastAnnouncement::Open(datagram + "x", "").ok());
  EXPECT_FALSE(MulticastAnnouncement::Open(std::string(kMaxAnnouncementBytes + 1, 's'), "").ok());
}

TEST(AnnouncementTest, NonsenseIsRefusedOrMakesSense) {
  std::mt19937 random(20240607);  // The same bytes in every run.
  const std::string datagram = Example().Seal("");
  auto check = [](const std::string& bytes) {
    auto opened = MulticastAnnouncement::Open(bytes, "");
    if (!opened.ok()) return;
    EXPECT_GE(opened->size, 1);
    EXPECT_GE(opened->rank, -1);
    EXPECT_EQ(opened->id.size(), kProcessIdBytes);
    EXPECT_EQ(opened->view.size(), kProcessIdBytes);
  };
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = datagram;
    for (int changes = 1 + random() % 4; changes > 0; --changes) {
      const size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, random() % 8);
          break;
        default:
          bytes.insert(at, std::to_string(random()));
      }
      if (bytes.empty()) break;
    }
    check(bytes);
    std::string noise(random() % 64, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    check(noise);
    check("syncline meeting 1;" + noise);
  }
}

TEST(AnnouncementTest, ValuesOutOfRangeAreRefused) {
  auto refused = [](auto change) {
    MulticastAnnouncement a = Example();
    change(a);
    EXPECT_FALSE(MulticastAnnouncement::Open(a.Seal(""), "").ok());
  };
  refused([](MulticastAnnouncement& a) { a.size = 0; });
  refused([](MulticastAnnouncement& a) { a.rank = -2; });
  refused([](MulticastAnnouncement& a) { a.id = "short"; });
  refused([](MulticastAnnouncement& a) { a.view = ""; });
  refused([](MulticastAnnouncement& a) { a.job = std::string(kMaxJobName + 1, 'x'); });
}

}  // namespace
}  // namespace syncline::join
