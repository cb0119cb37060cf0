// The store that the nodes of a job share, opened by one of them.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_RENDEZVOUS_STORE_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_RENDEZVOUS_STORE_H_

#include <memory>
#include <string>

#include "syncline/store.h"

namespace syncline::launch {

// A plain value; copies share the connection and the server.
struct RendezvousStore {
  std::shared_ptr<Store> store;  // Below the prefix of the job and, with `instance`, below that.
  std::string address;           // host:port, or the path of the file.
  std::string instance;          // Set where nodes host the store; job_location.h explains it.
  std::shared_ptr<void> server;  // Serves the endpoint while it lives; null: another node does.
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_RENDEZVOUS_STORE_H_
