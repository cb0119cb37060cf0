#include "launch/output/console.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

namespace syncline::launch {
namespace {

constexpr size_t kMaxHeld = 64 << 10;

bool EndsLine(char c) { return c == '\n' || c == '\r'; }

}  // namespace

class Console::Stream {
 public:
  Stream(LinePrefix prefix, Target target, TextSink& sink)
      : prefix(std::move(prefix)), target(target), sink(sink) {}

  const LinePrefix prefix;
  const Target target;
  TextSink& sink;
  std::string held;  // Text of a line whose end has not come.
  absl::Time held_since;
  bool returned = false;  // A carriage return came last: the next text overwrites the line.

  bool in_gap = false;   // Text is being left out.
  bool cut = false;      // In a gap: within a line.
  int64_t left_out = 0;  // Lines, in this gap.
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

Console::Stream* Console::AddStream(LinePrefix prefix, Target target) {
  streams_.push_back(
      std::make_unique<Stream>(std::move(prefix), target, target == Target::kOut ? out_ : err_));
  return streams_.back().get();
}

void Console::Feed(Stream* stream, absl::string_view bytes) {
  if (bytes.empty()) return;
  if (stream->prefix.empty()) return FeedWithoutPrefix(stream, bytes);
  if (stream->held.empty()) stream->held_since = clock_.Now();
  stream->held.append(bytes.data(), bytes.size());
  absl::string_view rest = stream->held;
  std::string shown;
  for (size_t end; (end = rest.find_first_of("\r\n")) != absl::string_view::npos;) {
    const Terminator terminator = rest[end] == '\n' ? Terminator::kNewline : Terminator::kReturn;
    Show(stream, rest.substr(0, end), terminator, &shown);
    rest.remove_prefix(end + 1);
  }
  if (rest.size() > kMaxHeld) {
    Show(stream, rest, Terminator::kNone, &shown);
    rest.remove_prefix(rest.size());
  }
  if (!shown.empty()) stream->sink.Write(shown);
  if (rest.size() != stream->held.size()) {
    stream->held = std::string(rest);
    stream->held_since = clock_.Now();
  }
}

void Console::FeedWithoutPrefix(Stream* stream, absl::string_view bytes) {
  const bool has_company = std::any_of(streams_.begin(), streams_.end(), [&](const auto& other) {
    return other.get() != stream && other->prefix.empty() && other->target == stream->target;
  });
  const size_t held = stream->held.size();
  const size_t end = has_company ? bytes.find_last_of("\r\n") + 1 : bytes.size();
  if (end == 0 && held + bytes.size() <= kMaxHeld) {
    if (held == 0) stream->held_since = clock_.Now();
    stream->held.append(bytes.data(), bytes.size());
    return;
  }
  const std::string whole =
      absl::StrCat(std::exchange(stream->held, ""), bytes.substr(0, end == 0 ? bytes.npos : end));
  Pass(stream, whole);
  if (end == 0 || end == bytes.size()) return;
  stream->held = std::string(bytes.substr(end));
  stream->held_since = clock_.Now();
}

void Console::Pass(Stream* stream, absl::string_view bytes) {
  if (stream->sink.full()) {
    StartGap(stream);
    stream->left_out += std::count(bytes.begin(), bytes.end(), '\n');
    stream->cut = !EndsLine(bytes.back());
    return;
  }
  if (stream->in_gap) {
    if (stream->cut) {
      const size_t end = bytes.find_first_of("\r\n");
      if (end == absl::string_view::npos) return;
      if (bytes[end] == '\n') ++stream->left_out;
      bytes.remove_prefix(end + 1);
    }
    std::string note;
    EndGap(stream, &note);
    stream->sink.Write(note);
  }
  if (bytes.empty()) return;
  stream->sink.Write(bytes);
  Line& line = LineOf(stream->target);
  line.owner = bytes.back() == '\n' ? nullptr : stream;
  line.orphaned = false;
}

void Console::End(Stream* stream) {
  ShowHeld(stream);
  if (stream->in_gap) {
    if (stream->cut) ++stream->left_out;
    std::string note;
    EndGap(stream, &note);
    stream->sink.Write(note);
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

void Console::Print(absl::string_view text, Target target) {
  Line& line = LineOf(target);
  if (line.owner != nullptr) EndLine(line);
  (target == Target::kOut ? out_ : err_)
      .Write(absl::StrCat(std::exchange(line.orphaned, false) ? "\n" : "", text, "\n"));
}

void Console::PrintOnce(const std::string& topic, absl::string_view text) {
  if (printed_.insert(topic).second) Print(text);
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
    if (now >= stream->held_since + kHoldTime) ShowHeld(stream.get());
  }
}

void Console::ShowHeld(Stream* stream) {
  if (stream->held.empty()) return;
  if (stream->prefix.empty()) return Pass(stream, std::exchange(stream->held, ""));
  std::string shown;
  Show(stream, stream->held, Terminator::kNone, &shown);
  stream->held.clear();
  stream->sink.Write(shown);
}

void Console::Show(Stream* stream, absl::string_view text, Terminator terminator,
                   std::string* shown) {
  if (stream->sink.full()) StartGap(stream);
  if (stream->in_gap && (stream->cut || stream->sink.full())) {
    if (terminator == Terminator::kNewline) ++stream->left_out;
    stream->cut = terminator == Terminator::kNone;
    return;
  }
  if (stream->in_gap) EndGap(stream, shown);
  Line& line = LineOf(stream->target);
  if (line.owner != nullptr && line.owner != stream) EndLine(line);
  const bool open = line.owner == stream;
  if (!open) stream->returned = false;
  if (text.empty() && terminator == Terminator::kReturn) {  // Most bars return first, then write.
    stream->returned = open;
    return;
  }
  const bool overwrites = stream->returned && !text.empty();
  absl::StrAppend(shown, overwrites ? "\r" : "",
                  !open || overwrites ? stream->prefix.Text() : std::string(), text,
                  terminator == Terminator::kNewline ? "\n" : "");
  line.owner = terminator == Terminator::kNewline ? nullptr : stream;
  stream->returned = terminator == Terminator::kReturn;
}

void Console::StartGap(Stream* stream) {
  if (std::exchange(stream->in_gap, true)) return;
  stream->cut = LineOf(stream->target).owner == stream;
}

void Console::EndGap(Stream* stream, std::string* shown) {
  stream->in_gap = false;
  stream->cut = false;
  const int64_t lines = std::exchange(stream->left_out, 0);
  if (lines == 0) return;
  Line& line = LineOf(stream->target);
  if (line.owner != nullptr) EndLine(line);
  absl::StrAppend(shown, stream->prefix.Text(), "... ", lines, lines == 1 ? " line" : " lines",
                  " dropped, reader too slow\n");
}

void Console::EndLine(Line& line) {
  line.owner->sink.Write("\n");
  line.owner = nullptr;
}

Console::Line& Console::LineOf(Target target) {
  return target == Target::kOut || outputs_ == Outputs::kSame ? *out_line_ : *err_line_;
}

}  // namespace syncline::launch
