// What sends of backend mpi put on the wire.
#ifndef SYNCLINE_BACKENDS_MPI_MESSAGE_H_
#define SYNCLINE_BACKENDS_MPI_MESSAGE_H_

#include <cstdint>

#include "backends/mpi/thresholds.h"

namespace syncline::mpi {

// Goes before the elements of every message. Plain bytes.
struct MessageHeader {
  uint64_t nonce;  // Of the group: a communicator of an earlier one may have had the same number.
  uint64_t sequence;
  int64_t tag;
  int64_t count;
  uint64_t dtype;
};

// A header, and the elements of a short message.
struct Message {
  MessageHeader header;
  char elements[kEagerMessageMaxBytes];
};

}  // namespace syncline::mpi

#endif  // SYNCLINE_BACKENDS_MPI_MESSAGE_H_
