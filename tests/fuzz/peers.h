// A group's ranks and their connections, for targets that stand in for the other ranks.
#ifndef SYNCLINE_TESTS_FUZZ_PEERS_H_
#define SYNCLINE_TESTS_FUZZ_PEERS_H_

#include <sys/socket.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "backends/common/peer_table.h"
#include "core/base/unique_fd.h"
#include "core/testing/fuzz/fuzz.h"
#include "core/tls/stream.h"
#include "syncline/deadline.h"
#include "syncline/hash_store.h"

namespace syncline::fuzz {

inline constexpr int kRanks = 4;

// The table of rank 0, made once.
inline const backends::PeerTable& Peers() {
  static const backends::PeerTable* const peers = [] {
    HashStore store;
    std::vector<absl::StatusOr<backends::PeerTable>> tables(kRanks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        tables[rank] = backends::PeerTable::Join(store, rank, kRanks, absl::StrCat("at ", rank),
                                                 Deadline(absl::Minutes(1)));
      });
    }
    for (std::thread& thread : threads) thread.join();
    return new backends::PeerTable(*std::move(tables[0]));
  }();
  return *peers;
}

// Both ends of rank 0's connections to the others. Those of this rank itself are invalid.
struct Connections {
  Connections() : own(kRanks), others(kRanks) {
    for (int rank = 1; rank < kRanks; ++rank) {
      int pair[2] = {-1, -1};
      Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0,
              "there are descriptors");
      own[rank] = tls::Stream(base::UniqueFd(pair[0]));
      others[rank] = base::UniqueFd(pair[1]);
    }
  }

  // Rank 0's ends, which it owns no more then, as lists of one for each rank.
  std::vector<std::vector<tls::Stream>> TakeLists() {
    std::vector<std::vector<tls::Stream>> lists(kRanks);
    for (int rank = 1; rank < kRanks; ++rank) lists[rank].push_back(std::move(own[rank]));
    return lists;
  }

  std::vector<tls::Stream> own;
  std::vector<base::UniqueFd> others;
};

// As much as the kernel takes.
inline void Write(const base::UniqueFd& socket, absl::string_view bytes) {
  static_cast<void>(send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

// What has come.
inline std::string ReadAll(const base::UniqueFd& socket) {
  std::string all;
  char bytes[16 << 10];
  ssize_t size;
  while ((size = recv(socket.get(), bytes, sizeof(bytes), MSG_DONTWAIT)) > 0) {
    all.append(bytes, static_cast<size_t>(size));
  }
  return all;
}

}  // namespace syncline::fuzz

#endif  // SYNCLINE_TESTS_FUZZ_PEERS_H_
