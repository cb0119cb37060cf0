// A receive that waits in two transports at once.
#ifndef SYNCLINE_BACKENDS_COMMON_TWIN_RECEIVE_H_
#define SYNCLINE_BACKENDS_COMMON_TWIN_RECEIVE_H_

#include <atomic>

namespace syncline::backends {

// The half of a receive from any rank that is posted in another transport than the one in which its
// thread sleeps. A message may come in either transport, at the same time too: whichever finds one
// claims the receive, and only the first can.
//
// Withdrawn when it is destroyed. Claim may be called from any thread, the other methods from that
// of the receive.
class TwinReceive {
 public:
  virtual ~TwinReceive() = default;

  // Whether the message is the caller's to deliver. False: the other transport has one.
  bool Claim() { return !is_claimed_.exchange(true); }

  // Looks for a message, and waits for one if there is none. Once.
  virtual bool Post() = 0;

  // Looks. True: the receive is claimed for the message that has come here. Requires Post.
  virtual bool HasMatched() = 0;

  // The thread is about to sleep in the other transport, and has woken up. What comes in between
  // wakes it. Look once more after BeginSleep.
  virtual void BeginSleep() = 0;
  virtual void EndSleep() = 0;

 private:
  std::atomic<bool> is_claimed_{false};
};

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_TWIN_RECEIVE_H_
