// Open files that a fork()ed child does not share.
#ifndef SYNCLINE_STORE_FILE_UNSHARED_FILE_H_
#define SYNCLINE_STORE_FILE_UNSHARED_FILE_H_

#include <sys/types.h>

#include <string>

namespace syncline::file_store {

// As open(), with O_CLOEXEC; but fork() closes the descriptor in the child. So the opening, with
// its locks, ends with this process however that ends, and whatever its children do. Only a bare
// clone() and dup() escape this. A fork() waits for an OpenUnshared that is under way.
int OpenUnshared(const std::string& path, int flags, mode_t mode);

// Closes what OpenUnshared has opened. Must not be called in a fork()ed child: there the number may
// by now stand for another file.
void CloseUnshared(int fd);

}  // namespace syncline::file_store

#endif  // SYNCLINE_STORE_FILE_UNSHARED_FILE_H_
