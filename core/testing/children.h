// Children of a test that go on with it by fork.
#ifndef SYNCLINE_CORE_TESTING_CHILDREN_H_
#define SYNCLINE_CORE_TESTING_CHILDREN_H_

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

namespace syncline {

// Runs `body` in a child, which exits with 0 if it returns true. Returns the child's pid.
template <typename Body>
pid_t Fork(const Body& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  return child;
}

// Waits for the child; returns whether it has exited with 0.
inline bool ExitsWell(pid_t child) {
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace syncline

#endif  // SYNCLINE_CORE_TESTING_CHILDREN_H_
