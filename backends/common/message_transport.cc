#include "backends/common/message_transport.h"

namespace syncline::backends {

std::vector<int> OtherRanks(int rank, int size) {
  std::vector<int> others;
  for (int other = 0; other < size; ++other) {
    if (other != rank) others.push_back(other);
  }
  return others;
}

}  // namespace syncline::backends
