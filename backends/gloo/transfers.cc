#include "backends/gloo/transfers.h"

namespace syncline::gloo_backend {

void Transfers::Send(int to, const void* data, size_t nbytes) {
  if (nbytes == 0) return;
  // Gloo's interface takes all memory as writable, but it only reads what it sends.
  sends_.push_back(context_.createUnboundBuffer(const_cast<void*>(data), nbytes));
  sends_.back()->send(to, slot_);
}

void Transfers::Receive(int from, void* data, size_t nbytes) {
  if (nbytes == 0) return;
  receives_.push_back(context_.createUnboundBuffer(data, nbytes));
  receives_.back()->recv(from, slot_);
}

void Transfers::Wait() {
  for (auto& buffer : receives_) buffer->waitRecv();
  for (auto& buffer : sends_) buffer->waitSend();
  receives_.clear();
  sends_.clear();
}

std::vector<int> OtherRanks(int rank, int size) {
  std::vector<int> others;
  for (int other = 0; other < size; ++other) {
    if (other != rank) others.push_back(other);
  }
  return others;
}

}  // namespace syncline::gloo_backend
