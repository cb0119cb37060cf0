// Merges the output of many workers into readable lines.
#ifndef SYNCLINE_LAUNCH_OUTPUT_CONSOLE_H_
#define SYNCLINE_LAUNCH_OUTPUT_CONSOLE_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "launch/clock.h"
#include "launch/output/prefix.h"

namespace syncline::launch {

// Receives text. Never fails and never blocks for long: text that cannot be written is lost. Used
// by one thread.
class TextSink {
 public:
  virtual ~TextSink() = default;
  virtual void Write(absl::string_view text) = 0;
  // Whether so much text waits for a slow reader that the caller should drop more.
  virtual bool full() const { return false; }
};

// The launcher's two outputs, shared by the streams of all workers. Not thread-safe.
//
// A line of a stream is written as a whole, after the stream's prefix. The same holds for each
// state of a line that carriage returns overwrite, as progress bars do; the prefix is repeated,
// because the bar overwrites it too. Text without an end of line is held back for kHoldTime. If
// another stream writes after that, the unfinished line is ended first.
//
// Nothing is added to a stream without a prefix; only the launcher's own lines are kept apart from
// it. If there is no other such stream for its output, it is copied as it arrives. If there is, its
// lines too are written as a whole, and text without an end of line is held back for kHoldTime:
// Python without buffers writes a line in pieces, and pieces of two workers would be mixed.
//
// While a sink is full(), whole lines are dropped. A line in their place has the number.
class Console {
 public:
  enum class Target { kOut, kErr };
  // kSame: both show on the same terminal or in the same file, and can disturb each other's lines.
  enum class Outputs { kApart, kSame };

  static constexpr absl::Duration kHoldTime = absl::Milliseconds(100);

  // The sinks and the clock must outlive the console.
  Console(TextSink& out, TextSink& err, Outputs outputs, const Clock& clock);
  ~Console();

  class Stream;  // Belongs to the console.
  Stream* AddStream(LinePrefix prefix, Target target);

  void Feed(Stream* stream, absl::string_view bytes);
  // The stream has ended: writes what is held back, ends an unfinished line that has a prefix, and
  // deletes the stream.
  void End(Stream* stream);

  // Writes a line of the launcher itself. Lines within `text` stay together.
  void Print(absl::string_view text, Target target = Target::kErr);
  // As Print(), but only the first time for one `topic`.
  void PrintOnce(const std::string& topic, absl::string_view text);

  // When to call FlushHeld(); InfiniteFuture if nothing is held back.
  absl::Time next_flush() const;
  void FlushHeld();

 private:
  enum class Terminator { kNone, kNewline, kReturn };
  struct Line;

  void FeedWithoutPrefix(Stream* stream, absl::string_view bytes);
  void Pass(Stream* stream, absl::string_view bytes);
  // Appends to `shown` what must be written to the stream's sink.
  void Show(Stream* stream, absl::string_view text, Terminator terminator, std::string* shown);
  void ShowHeld(Stream* stream);
  void StartGap(Stream* stream);
  void EndGap(Stream* stream, std::string* shown);
  void EndLine(Line& line);
  Line& LineOf(Target target);

  TextSink& out_;
  TextSink& err_;
  const Outputs outputs_;
  const Clock& clock_;
  std::unique_ptr<Line> out_line_;
  std::unique_ptr<Line> err_line_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::set<std::string> printed_;
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OUTPUT_CONSOLE_H_
