// ThreadId: a thread of any process of this host, in one word.
#ifndef SYNCLINE_CORE_QUEUE_THREAD_ID_H_
#define SYNCLINE_CORE_QUEUE_THREAD_ID_H_

#include <cstdint>

namespace syncline::queue {

// The kernel's id of a thread, and the low half of the time when it began, which tells it from a
// later one of that id. Never 0. Threads, not processes, own messages: a process whose main thread
// has ended may have others that still write, and one of them may end in the middle of a copy.
using ThreadId = uint64_t;

// That of the calling thread. Costs two loads, except for the first call of a thread.
ThreadId CurrentThread();

enum class ThreadState {
  kRuns,     // Or nothing can be said against it.
  kStopped,  // By a signal, such as that of ^Z.
  kDead,     // It will never run another instruction of its program.
};

// Asks the kernel. `thread` must be of this pid namespace. Takes a system call for a thread that is
// gone, and reads a file below /proc for others.
ThreadState StateOfThread(ThreadId thread);

}  // namespace syncline::queue

#endif  // SYNCLINE_CORE_QUEUE_THREAD_ID_H_
