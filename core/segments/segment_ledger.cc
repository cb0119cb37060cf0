#include "core/segments/segment_ledger.h"

#include <iterator>

namespace syncline::segments {

void SegmentLedger::Change(std::map<ClientId, int64_t>& counts, ClientId client, int change) {
  const auto found = counts.try_emplace(client, 0).first;
  found->second += change;
  if (found->second == 0) counts.erase(found);
}

std::map<SegmentKey, SegmentLedger::Counts>::iterator SegmentLedger::FreeIfUnused(
    std::map<SegmentKey, Counts>::iterator it) {
  if (!it->second.uses.empty() || !it->second.carried.empty()) return std::next(it);
  free_(it->first);
  return segments_.erase(it);
}

void SegmentLedger::Use(ClientId client, const SegmentKey& segment, int change) {
  const auto it = segments_.try_emplace(segment).first;
  Change(it->second.uses, client, change);
  FreeIfUnused(it);
}

void SegmentLedger::Carry(ClientId sender, const SegmentKey& segment, int change) {
  if (killed_.count(sender) != 0) return;
  const auto it = segments_.try_emplace(segment).first;
  Change(it->second.carried, sender, change);
  FreeIfUnused(it);
}

void SegmentLedger::End(ClientId client) {
  const bool was_killed = left_.erase(client) == 0;
  if (was_killed) killed_.insert(client);
  for (auto it = segments_.begin(); it != segments_.end();) {
    it->second.uses.erase(client);
    if (was_killed) it->second.carried.erase(client);
    it = FreeIfUnused(it);
  }
}

void SegmentLedger::FreeAll() {
  for (const auto& [segment, counts] : segments_) free_(segment);
  segments_.clear();
}

}  // namespace syncline::segments
