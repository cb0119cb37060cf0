#include "launch/output/console.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

namespace syncline {
namespace {

constexpr size_t kMaxHeld = 64 << 10;

}  // namespace

class Console::Stream {
 public:
  Stream(std::string prefix, Target target, TextSink& sink)
      : prefix(std::move(prefix)), target(target), sink(sink) {}

  const std::string prefix;
  const Target target;
  TextSink& sink;
  std::string held;  // Text of a line whose end has not come.
  absl::Time held_since;
  bool returned = false;  // A carriage return came last: the next text overwrites the line.
};

// The line at the cursor of a terminal or the end of a file.
struct Console::Line {
  Stream* owner = nullptr;  // Whose unfinished line it is; null: the next text begins a line.
  bool orphaned = false;    // Unfinished all the same: its stream, without a prefix, has ended.
};

Console::Console(TextSink& out, TextSink& err, Outputs outputs, const Clock& clock)
    : out_(out),
      err_(err),
      outputs_(outputs),
      clock_(clock),
      out_line_(new Line),
      err_line_(new Line) {}

Console::~Console() = default;

Console::Stream* Console::AddStream(std::string prefix, Target target) {
  streams_.push_back(
      std::make_unique<Stream>(std::move(prefix), target, target == Target::kOut ? out_ : err_));
  return streams_.back().get();
}

void Console::Feed(Stream* stream, absl::string_view bytes) {
  if (bytes.empty()) return;
  if (stream->prefix.empty()) {
    stream->sink.Write(bytes);
    Line& line = LineOf(stream->target);
    line.owner = bytes.back() == '\n' ? nullptr : stream;
    line.orphaned = false;
    return;
  }
  if (stream->held.empty()) stream->held_since = clock_.Now();
  stream->held.append(bytes.data(), bytes.size());
  absl::string_view rest = stream->held;
  for (size_t end; (end = rest.find_first_of("\r\n")) != absl::string_view::npos;) {
    Show(stream, rest.substr(0, end),
         rest[end] == '\n' ? Terminator::kNewline : Terminator::kReturn);
    rest.remove_prefix(end + 1);
  }
  if (rest.size() > kMaxHeld) {
    Show(stream, rest, Terminator::kNone);
    rest.remove_prefix(rest.size());
  }
  if (rest.size() != stream->held.size()) {
    stream->held = std::string(rest);
    stream->held_since = clock_.Now();
  }
}

void Console::End(Stream* stream) {
  if (!stream->held.empty()) {
    Show(stream, stream->held, Terminator::kNone);
    stream->held.clear();
  }
  Line& line = LineOf(stream->target);
  if (line.owner == stream && stream->prefix.empty()) {
    line.owner = nullptr;
    line.orphaned = true;
  } else if (line.owner == stream) {
    EndLine(line);
  }
  streams_.erase(std::find_if(streams_.begin(), streams_.end(),
                              [&](const auto& each) { return each.get() == stream; }));
}

void Console::Say(absl::string_view text) {
  Line& line = LineOf(Target::kErr);
  if (line.owner != nullptr) EndLine(line);
  err_.Write(absl::StrCat(std::exchange(line.orphaned, false) ? "\n" : "", text, "\n"));
}

absl::Time Console::next_flush() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& stream : streams_) {
    if (!stream->held.empty()) next = std::min(next, stream->held_since + kHoldTime);
  }
  return next;
}

void Console::FlushHeld() {
  const absl::Time now = clock_.Now();
  for (const auto& stream : streams_) {
    if (stream->held.empty() || now < stream->held_since + kHoldTime) continue;
    Show(stream.get(), stream->held, Terminator::kNone);
    stream->held.clear();
  }
}

void Console::Show(Stream* stream, absl::string_view text, Terminator terminator) {
  Line& line = LineOf(stream->target);
  if (line.owner != nullptr && line.owner != stream) EndLine(line);
  const bool open = line.owner == stream;
  if (!open) stream->returned = false;
  if (text.empty() && terminator == Terminator::kReturn) {  // Most bars return first, then write.
    stream->returned = open;
    return;
  }
  const bool overwrites = stream->returned && !text.empty();
  std::string shown =
      absl::StrCat(overwrites ? "\r" : "", !open || overwrites ? stream->prefix : "", text,
                   terminator == Terminator::kNewline ? "\n" : "");
  stream->sink.Write(shown);
  line.owner = terminator == Terminator::kNewline ? nullptr : stream;
  stream->returned = terminator == Terminator::kReturn;
}

void Console::EndLine(Line& line) {
  line.owner->sink.Write("\n");
  line.owner = nullptr;
}

Console::Line& Console::LineOf(Target target) {
  return target == Target::kOut || outputs_ == Outputs::kSame ? *out_line_ : *err_line_;
}

}  // namespace syncline
