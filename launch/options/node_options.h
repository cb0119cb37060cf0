// Interprets the settings of nodes and rendezvous, which depend on each other. Errors are
// ArgumentError and name the settings. Pure functions.
#ifndef SYNCLINE_LAUNCH_OPTIONS_NODE_OPTIONS_H_
#define SYNCLINE_LAUNCH_OPTIONS_NODE_OPTIONS_H_

#include "absl/status/status.h"
#include "launch/options/options.h"
#include "launch/options/settings.h"

namespace syncline::launch {

// Resolves conflicts between --standalone and the other options of this group; what was dropped
// goes to `notes`. Must be called before a cluster's proposals are added.
absl::Status ResolveStandalone(Settings* settings, std::vector<std::string>* notes);

// Fills in nodes, node_rank, rendezvous, local_addr, master_addr and master_port.
absl::Status ReadNodeOptions(const Settings& settings, LaunchOptions* options);

// The same for `status ENDPOINT`: a rendezvous there, and status_endpoint.
absl::Status ReadStatusOptions(const Settings& settings, absl::string_view endpoint,
                               LaunchOptions* options);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OPTIONS_NODE_OPTIONS_H_
