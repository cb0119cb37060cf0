// Nodes and rendezvous: what the settings mean together.
#ifndef SYNCLINE_LAUNCH_OPTIONS_NODE_OPTIONS_H_
#define SYNCLINE_LAUNCH_OPTIONS_NODE_OPTIONS_H_

#include "absl/status/status.h"
#include "launch/options/options.h"
#include "launch/options/settings.h"

namespace syncline::launch {

// Lets --standalone and the other options of this group that exclude one another fight it out.
// Afterwards a cluster's proposals may be added.
absl::Status SettleStandalone(Settings* settings, std::vector<std::string>* notes);

// Fills in nodes, node_rank, rendezvous, local_addr, master_addr and master_port.
absl::Status ReadNodeOptions(const Settings& settings, LaunchOptions* options);

// The same for `status ENDPOINT`: a rendezvous there, and status_endpoint.
absl::Status ReadStatusOptions(const Settings& settings, absl::string_view endpoint,
                               LaunchOptions* options);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OPTIONS_NODE_OPTIONS_H_
