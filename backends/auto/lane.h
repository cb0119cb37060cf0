// Gloo among some of the ranks of a group.
#ifndef SYNCLINE_BACKENDS_AUTO_LANE_H_
#define SYNCLINE_BACKENDS_AUTO_LANE_H_

#include <memory>
#include <vector>

#include "gloo/context.h"

namespace syncline {

// A context in which ranks[i] of `gloo` is rank i; this rank is ranks[place]. It uses the
// connections of `gloo`, whose waits it has, and moves messages only.
std::shared_ptr<gloo::Context> MakeLane(std::shared_ptr<gloo::Context> gloo, std::vector<int> ranks,
                                        int place);

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_AUTO_LANE_H_
