// Whose turn it is to serve an address of this host.
#ifndef SYNCLINE_CORE_JOIN_SERVING_TURN_H_
#define SYNCLINE_CORE_JOIN_SERVING_TURN_H_

#include "absl/strings/string_view.h"

namespace syncline {

// Of the processes of this host that would serve one address, the one whose turn it is to try: two
// that tried at once could both fail, and gRPC would log it. Ends with the object, or the process.
class ServingTurn {
 public:
  ServingTurn(absl::string_view host, int port);
  ~ServingTurn();

  ServingTurn(const ServingTurn&) = delete;
  ServingTurn& operator=(const ServingTurn&) = delete;

  bool is_mine() const { return is_mine_; }

 private:
  const int fd_;
  bool is_mine_;
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_JOIN_SERVING_TURN_H_
