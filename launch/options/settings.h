// The text of each option that was given, and the source that gave it.
#ifndef SYNCLINE_LAUNCH_OPTIONS_SETTINGS_H_
#define SYNCLINE_LAUNCH_OPTIONS_SETTINGS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launch/options/flags.h"
#include "launch/options/options.h"

namespace syncline::launch {

// The source of a value, from the weakest to the strongest.
enum class Layer { kCluster, kConfigFile, kPetVariable, kVariable, kCommandLine };

struct Setting {
  std::string text;  // "true" or "false" for a switch.
  Layer layer = Layer::kCommandLine;
  std::string name;  // What to call it in messages: "--nnodes", "PET_NNODES", "job.toml:3: nnodes".

  // "--nnodes=2", "--standalone", "PET_NNODES=2".
  std::string Describe() const;
};

// A map from options to settings. Not thread-safe.
class Settings {
 public:
  // Of two values for one option the one of the stronger layer stays; in one layer, the later one.
  // ArgumentError for text that cannot be a value of `flag`, which is one of AllFlags().
  absl::Status Set(const Flag& flag, Setting setting);

  // Adds the variables SYNCLINE_<NAME>, PET_<NAME>, and `variable` of the flag. Empty values are
  // ignored.
  absl::Status AddEnvironment(const base::EnvironmentLookup& environment);

  // Null if nobody set it.
  const Setting* Find(absl::string_view name) const;
  // The same, but null if only a cluster proposes it.
  const Setting* Given(absl::string_view name) const;
  std::string Text(absl::string_view name, absl::string_view default_value) const;
  // The option's name for messages.
  std::string Name(absl::string_view name) const;
  bool IsOn(absl::string_view name) const;  // A switch.
  void Drop(absl::string_view name) { settings_.erase(std::string(name)); }

  // For two options that contradict each other: drops the one of the weaker layer and adds a line
  // to `notes`. ArgumentError, naming both, if they are of the same layer.
  absl::Status ResolveConflict(absl::string_view one, absl::string_view other,
                               absl::string_view why, std::vector<std::string>* notes);

  const std::map<std::string, Setting>& all() const { return settings_; }

 private:
  std::map<std::string, Setting> settings_;  // By the option's name.
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OPTIONS_SETTINGS_H_
