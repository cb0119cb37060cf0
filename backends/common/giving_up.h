// How a rank that gives up joining tells the others why.
#ifndef SYNCLINE_BACKENDS_COMMON_GIVING_UP_H_
#define SYNCLINE_BACKENDS_COMMON_GIVING_UP_H_

#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "backends/common/peer_table.h"
#include "syncline/backend.h"
#include "syncline/store.h"

namespace syncline::backends {

// For a rank that connects to those of a table, in whose store they have met. A connection that is
// refused or has ended does not say why, and of one that nobody begins nothing is heard at all.
// Neither call takes longer than kBound, whatever the store does. Borrows the table. Not
// thread-safe.
class GivingUp {
 public:
  static constexpr absl::Duration kBound = absl::Seconds(3);
  static constexpr absl::Duration kInterval = absl::Seconds(1);
  static constexpr absl::Duration kIntervalOfSilentStore = absl::Seconds(30);

  // For a rank that could not wait for a table, because of `failure`: the others may be past it.
  // `own_key` is one that it has set.
  static void TellWithoutTable(Store& store, int rank, const std::string& own_key,
                               const absl::Status& failure);

  GivingUp(std::shared_ptr<Store> store, const PeerTable& peers)
      : store_(std::move(store)), peers_(peers) {}

  // For a wait, which may call it as often as it likes: the error of a rank that has given up. Asks
  // the store each kInterval, or kIntervalOfSilentStore after it has not answered.
  absl::Status Check();

  // This rank gives up, because of `failure`: publishes that, and returns the error for the user.
  // That is `failure`, unless the ranks that it blames have given up before: then it quotes one of
  // them, and names the ranks that that one blames. A refusal of TLS stays as it is. Call it before
  // this rank ends its connections, by which others notice.
  absl::Status Tell(const absl::Status& failure) const;

 private:
  const std::shared_ptr<Store> store_;
  const PeerTable& peers_;
  absl::Time next_check_ = absl::Now() + kInterval;
  bool has_heard_ = false;  // Check has returned an error.
};

// Joins the table of `name`, and then makes a backend with `make`, which gets it, and `config` with
// a check_peers that ends the waits of further tables: when a rank has died, or was interrupted and
// has come to the first table, but will not come to the next. The other errors of `make` are for
// all ranks, or `make` sees to that.
using MakeInTable = absl::FunctionRef<absl::StatusOr<std::shared_ptr<Backend>>(
    const BackendConfig& config, const PeerTable& peers)>;
absl::StatusOr<std::shared_ptr<Backend>> MakeAfterMeeting(absl::string_view name,
                                                          const BackendConfig& config,
                                                          MakeInTable make);

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_GIVING_UP_H_
