// Formats a job's status in the text format of Prometheus. Pure.
#ifndef SYNCLINE_LAUNCH_MONITOR_METRICS_H_
#define SYNCLINE_LAUNCH_MONITOR_METRICS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "launch/monitor/job_status.h"

namespace syncline::launch {

// The format's media type.
inline constexpr absl::string_view kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

// Version 0.0.4 of the format; docs/monitoring.md lists the metrics. Prometheus itself adds job and
// instance to each series, so the only labels are those that distinguish workers.
std::string FormatMetrics(const NodeStatus& status);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_MONITOR_METRICS_H_
