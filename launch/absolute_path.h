// A path that stays valid for workers that change their folder.
#ifndef SYNCLINE_LAUNCH_ABSOLUTE_PATH_H_
#define SYNCLINE_LAUNCH_ABSOLUTE_PATH_H_

#include <filesystem>
#include <string>
#include <system_error>

namespace syncline::launch {

// `path` from the root of the file system; unchanged if the current folder is gone. Pure function,
// for any thread.
inline std::string AbsolutePath(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path absolute = std::filesystem::absolute(path, ignored);
  return absolute.empty() ? path : absolute.string();
}

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_ABSOLUTE_PATH_H_
