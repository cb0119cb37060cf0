// How ranks that join hear of one that gives up.
#include "backends/common/giving_up.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "backends/common/peer_table.h"
#include "core/testing/forwarding_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/deadline.h"
#include "syncline/error_origin.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "tests/support/ranks.h"

namespace syncline::backends {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The tables of ranks that have met.
std::vector<PeerTable> Meet(Store& store, int size) {
  std::vector<std::optional<PeerTable>> tables(size);
  for (const absl::Status& status : RunRanks(size, [&](int rank) -> absl::Status {
         SYNCLINE_ASSIGN_OR_RETURN(
             tables[rank], PeerTable::Join(store, rank, size, "", Deadline(absl::Minutes(1))));
         return absl::OkStatus();
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
  std::vector<PeerTable> met;
  for (auto& table : tables) met.push_back(*std::move(table));
  return met;
}

absl::Status Blame(int rank, absl::string_view text) {
  return WithRanks(NetworkError(text), {rank});
}

TEST(GivingUpTest, WhoWaitsHearsOfARankToWhichItHasNoConnection) {
  const auto store = std::make_shared<HashStore>();
  const std::vector<PeerTable> tables = Meet(*store, 3);
  GivingUp waiting(store, tables[1]);
  EXPECT_TRUE(waiting.Check().ok());
  const absl::Status failure = Blame(0, "cannot connect to rank 0: no route to host");
  EXPECT_EQ(GivingUp(store, tables[2]).Tell(failure), failure);
  absl::Status heard;
  for (const Deadline deadline(absl::Minutes(1)); heard.ok() && !deadline.Expired();) {
    heard = waiting.Check();
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_THAT(
      std::string(heard.message()),
      AllOf(HasSubstr("rank 2"), HasSubstr("has given up joining: cannot connect to rank 0: "
                                           "no route to host")));
  EXPECT_THAT(RanksOf(heard), ElementsAre(0));
  // What it has heard stays what it says.
  EXPECT_EQ(waiting.Tell(heard), heard);
}

TEST(GivingUpTest, WhoIsCutOffByARankThatGaveUpNamesTheCause) {
  const auto store = std::make_shared<HashStore>();
  const std::vector<PeerTable> tables = Meet(*store, 4);
  GivingUp(store, tables[1]).Tell(Blame(3, "rank 3 did not connect")).IgnoreError();
  const absl::Status second = GivingUp(store, tables[0]).Tell(Blame(1, "rank 1 has ended"));
  const absl::Status third = GivingUp(store, tables[2]).Tell(Blame(0, "rank 0 has ended"));
  for (const absl::Status& status : {second, third}) {
    EXPECT_THAT(RanksOf(status), ElementsAre(3)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 3 did not connect"));
  }
  // That rank hears what is said of it.
  const absl::Status late = GivingUp(store, tables[3]).Tell(Blame(1, "rank 1 has ended"));
  EXPECT_THAT(std::string(late.message()), HasSubstr("rank 3 did not connect"));
  EXPECT_THAT(RanksOf(late), ElementsAre(3));
}

TEST(GivingUpTest, AnErrorOfAnotherKindIsTheRanksOwn) {
  const auto store = std::make_shared<HashStore>();
  const std::vector<PeerTable> tables = Meet(*store, 2);
  GivingUp(store, tables[1]).Tell(Blame(0, "rank 0 has ended")).IgnoreError();
  const absl::Status own = WithRanks(BackendError("interrupted"), {1});
  EXPECT_EQ(GivingUp(store, tables[0]).Tell(own), own);
}

// A store of which the host has lost its power.
class SilentStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

  absl::Status Set(absl::string_view, absl::string_view) override { return Wait(); }
  absl::StatusOr<std::vector<std::string>> Keys(absl::string_view) override { return Wait(); }

 private:
  static absl::Status Wait() {
    absl::SleepFor(absl::Seconds(10));
    return StoreError("no answer");
  }
};

TEST(GivingUpTest, AStoreThatIsSilentHoldsUpNobody) {
  const auto store = std::make_shared<HashStore>();
  const std::vector<PeerTable> tables = Meet(*store, 2);
  const auto silent = std::make_shared<SilentStore>(store);
  GivingUp giving_up(silent, tables[0]);
  absl::SleepFor(GivingUp::kInterval);
  const absl::Time start = absl::Now();
  EXPECT_TRUE(giving_up.Check().ok());
  const absl::Status failure = Blame(1, "rank 1 has ended");
  EXPECT_EQ(giving_up.Tell(failure), failure);
  EXPECT_LT(absl::Now() - start, absl::Seconds(8));
}

}  // namespace
}  // namespace syncline::backends
