#include "core/base/interfaces.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::base {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<InterfaceAddress>& Host() {
  static const auto& host = *new std::vector<InterfaceAddress>{
      {"lo", "127.0.0.1"}, {"eth0", "fd00:7::5"}, {"eth0", "10.1.2.3"}, {"docker0", "172.17.0.1"},
      {"ib0", "10.2.0.9"}, {"lo", "::1"},         {"eth2", "fd00:8::5"}};
  return host;
}

std::string Choose(const std::string& choice) {
  const auto chosen = ChooseAddresses(choice, Host());
  return chosen.ok() ? chosen->front() : "none";
}

TEST(InterfacesTest, AnInterfaceIsChosenByItsWholeName) {
  EXPECT_EQ(Choose("ib0"), "10.2.0.9");
  EXPECT_EQ(Choose("ib"), "none");
  EXPECT_EQ(Choose("eth0"), "10.1.2.3");  // IPv4 before IPv6.
  EXPECT_EQ(Choose("eth2"), "fd00:8::5");
  EXPECT_EQ(Choose("lo"), "127.0.0.1");
}

TEST(InterfacesTest, TheFirstOfSeveralThatThereIsCounts) {
  EXPECT_EQ(Choose("ib1,ib0,eth0"), "10.2.0.9");
  EXPECT_EQ(Choose(" eth0 , ib0"), "10.1.2.3");
}

TEST(InterfacesTest, EachEntryChoosesOneAddress) {
  const auto choose = [](absl::string_view choice) { return *ChooseAddresses(choice, Host()); };
  EXPECT_THAT(choose("ib1,ib0,eth0,eth2"), ElementsAre("10.2.0.9", "10.1.2.3", "fd00:8::5"));
  EXPECT_THAT(choose("eth0,10.1.0.0/16,eth0,fd00:7::/32"), ElementsAre("10.1.2.3", "fd00:7::5"));
  EXPECT_THAT(choose("^eth0"), ElementsAre("172.17.0.1"));
}

TEST(InterfacesTest, NetworksAreChosenByTheirBits) {
  EXPECT_EQ(Choose("10.2.0.0/16"), "10.2.0.9");
  EXPECT_EQ(Choose("10.0.0.0/14"), "10.1.2.3");
  EXPECT_EQ(Choose("10.1.2.2/31"), "10.1.2.3");
  EXPECT_EQ(Choose("10.1.2.2/32"), "none");
  EXPECT_EQ(Choose("fd00:8::/32"), "fd00:8::5");
  EXPECT_EQ(Choose("fd00:7::/32,ib0"), "fd00:7::5");
  EXPECT_EQ(Choose("0.0.0.0/0"), "127.0.0.1");
}

TEST(InterfacesTest, WhatMayNotBeIsNotChosen) {
  EXPECT_EQ(Choose("^eth0"), "172.17.0.1");
  EXPECT_EQ(Choose("^eth0,docker0"), "10.2.0.9");
  EXPECT_EQ(Choose("^eth0,docker0,10.2.0.0/16"), "fd00:8::5");  // Before the loopback.
  EXPECT_EQ(Choose("^0.0.0.0/0,::/0"), "none");
}

TEST(InterfacesTest, WhatIsNoListIsAnArgumentErrorThatQuotesIt) {
  for (const std::string choice : {"", "eth0,", "10.1.0.0/33", "10.1/16", "fd00::/129", "eth0,^ib0",
                                   "10.1.0.0/-1", "/8", "a b", "10.1.0.0/16/8"}) {
    const absl::Status status = ChooseAddresses(choice, Host()).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kArgument) << choice << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("'eth1,10.1.0.0/16'"));
  }
}

TEST(InterfacesTest, WhereNoneIsChosenTheErrorSaysWhatThereIs) {
  const absl::Status status = ChooseAddresses("eth7", Host()).status();
  EXPECT_EQ(KindOf(status), ErrorKind::kNetwork);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("eth0 (10.1.2.3)"), HasSubstr("ib0 (10.2.0.9)")));
}

TEST(InterfacesTest, NamesThatNoInterfaceHasAreAbsent) {
  EXPECT_THAT(AbsentInterfaces("eth0, ehh1,lo,eth", Host()), ElementsAre("ehh1", "eth"));
  EXPECT_THAT(AbsentInterfaces("eth0,10.7.0.0/16,fd00:9::/32", Host()), IsEmpty());
  EXPECT_THAT(AbsentInterfaces("^ehh1,docker7", Host()), IsEmpty());
}

TEST(InterfacesTest, TheLoopbackOfThisHostIsListed) {
  const auto addresses = InterfaceAddresses();
  ASSERT_TRUE(addresses.ok()) << addresses.status();
  EXPECT_TRUE(std::any_of(addresses->begin(), addresses->end(),
                          [](const auto& it) { return it.address == "127.0.0.1"; }));
}

}  // namespace
}  // namespace syncline::base
