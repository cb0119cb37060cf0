#include "store/tcp/answers.h"

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::tcp_store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kStore[] = "tcp://host:1";

wire::ServerMessage Values(const std::vector<std::string>& values) {
  wire::ServerMessage answer;
  answer.mutable_values();
  for (const std::string& value : values) answer.mutable_values()->add_values(value);
  return answer;
}

TEST(AnswersTest, AnAnswerToSomethingElseIsANetworkErrorThatNamesTheStore) {
  wire::ServerMessage answer = Values({"a"});
  const absl::Status status =
      CheckAnswer(kStore, absl::Seconds(1), wire::ServerMessage::kSum, answer);
  EXPECT_EQ(KindOf(status), ErrorKind::kNetwork);
  EXPECT_THAT(status.message(), HasSubstr("store tcp://host:1: the server's answer is not to"));
}

TEST(AnswersTest, ThereIsAValueForEachKey) {
  wire::ServerMessage answer = Values({"1", "2"});
  EXPECT_THAT(*TakeValues(kStore, 2, answer), ElementsAre("1", "2"));
  for (const std::vector<std::string>& values :
       std::vector<std::vector<std::string>>{{}, {"1"}, {"1", "2", "3"}}) {
    answer = Values(values);
    EXPECT_EQ(KindOf(TakeValues(kStore, 2, answer).status()), ErrorKind::kNetwork);
  }
}

// Whoever lists keys takes the prefix off them: std::string::substr throws if it is not there.
TEST(AnswersTest, KeysThatDoNotBeginWithThePrefixAreANetworkError) {
  wire::ServerMessage answer = Values({"stall/0", "stall/1"});
  EXPECT_THAT(*TakeKeys(kStore, "stall/", answer), ElementsAre("stall/0", "stall/1"));
  answer = Values({"stall/0", "x"});
  EXPECT_EQ(KindOf(TakeKeys(kStore, "stall/", answer).status()), ErrorKind::kNetwork);
  answer = Values({""});
  EXPECT_EQ(KindOf(TakeKeys(kStore, "stall/", answer).status()), ErrorKind::kNetwork);
  answer = Values({});
  EXPECT_TRUE(TakeKeys(kStore, "stall/", answer)->empty());
}

}  // namespace
}  // namespace syncline::tcp_store
