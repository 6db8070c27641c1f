#include "chat/tool_calls.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "chat/tool_call_object.h"
#include "chat/tool_call_tagged.h"

namespace protean {
namespace {

constexpr std::string_view kHermesOpen = "<tool_call>";
constexpr std::string_view kHermesClose = "</tool_call>";
constexpr std::string_view kPythonTag = "<|python_tag|>";
constexpr std::string_view kMistralOpen = "[TOOL_CALLS]";
constexpr std::string_view kGraniteOpen = "<|tool_call|>";
constexpr std::string_view kCommandOpen = "<|START_ACTION|>";
constexpr std::string_view kMistralArgs = "[ARGS]";
constexpr std::string_view kMistralCallId = "[CALL_ID]";

// A call whose name comes after its arguments is held back until the name. Longer text is content.
constexpr std::size_t kMaxHeldBytes = 1 << 20;
constexpr std::size_t kMaxHeaderBytes = 512;
constexpr std::size_t kMaxSpaceBytes = 4096;

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// Mistral's name[CALL_ID]id[ARGS]. All but the name may be missing, since special tokens are often
// not written out.
struct Header {
  std::string_view name;
  std::string_view id;
};
std::optional<Header> parse_header(std::string_view text) {
  if (text.ends_with(kMistralArgs)) text.remove_suffix(kMistralArgs.size());
  Header header{.name = trim(text)};
  if (const std::size_t at = text.find(kMistralCallId); at != std::string_view::npos) {
    header = {trim(text.substr(0, at)), trim(text.substr(at + kMistralCallId.size()))};
  }
  const bool brackets = header.name.find('[') != std::string_view::npos ||
                        header.id.find('[') != std::string_view::npos;
  return brackets ? std::nullopt : std::optional(header);
}

// Whether `text` may be the beginning of such a header.
bool may_become_header(std::string_view text) {
  const char last = text.back();
  if (static_cast<unsigned char>(last) < 0x20 || text.size() > kMaxHeaderBytes) return false;
  std::size_t at = text.find('[');
  if (at == std::string_view::npos) return true;
  std::string_view tail = text.substr(at);
  if (tail.starts_with(kMistralCallId)) {
    at = tail.find('[', 1);
    if (at == std::string_view::npos) return true;
    tail = tail.substr(at);
    return kMistralArgs.starts_with(tail);
  }
  return kMistralArgs.starts_with(tail) || kMistralCallId.starts_with(tail);
}

// Returns the mark after calls, which may be missing: special tokens are often not written out.
// Phi-4-mini writes it after each call, an object without an array around it.
std::string_view closing_mark_of(ToolFormat format) {
  switch (format) {
    case ToolFormat::kGranite:
      return "<|/tool_call|>";
    case ToolFormat::kCommand:
      return "<|END_ACTION|>";
    default:
      return kHermesClose;
  }
}

// Returns the mark before calls; empty if calls are only at the answer's start.
std::string_view marker_of(ToolFormat format) {
  switch (format) {
    case ToolFormat::kMistral:
      return kMistralOpen;
    case ToolFormat::kGranite:
      return kGraniteOpen;
    case ToolFormat::kCommand:
      return kCommandOpen;
    case ToolFormat::kHermes:
    case ToolFormat::kQwenCoder:
    case ToolFormat::kGlm:
      return kHermesOpen;
    case ToolFormat::kLlama3:
    case ToolFormat::kGlm4:
    case ToolFormat::kNone:
      break;
  }
  return {};
}

}  // namespace

class ToolCallParser::Impl final : public CallSink {
 public:
  Impl(ToolFormat format, std::vector<OfferedTool> tools)
      : format_(tools.empty() ? ToolFormat::kNone : format), tools_(std::move(tools)) {
    for (const OfferedTool& tool : tools_) names_.push_back(tool.name);
    marker_ = marker_of(format_);
    if (marker_.empty() && format_ != ToolFormat::kNone) {
      state_ = State::kOpened;
    }
  }

  void step(char c);
  void finish(bool cut_off);
  std::vector<ToolPiece> take() { return std::exchange(pieces_, {}); }
  bool in_call() const { return in_call_; }

  void begin(std::string_view id, std::string_view name) override;
  void arguments(std::string_view text) override;

 private:
  enum class State : std::uint8_t {
    kText,    // looking for the marker; matched_ bytes of it are held
    kOpened,  // before a call's first byte
    kTag,     // Llama's python tag
    kHeader,  // Mistral's name, id and tags before the arguments, GLM-4's name and line end
    kObject,
    kHeadedArguments,
    kClosing,       // before or in the end mark
    kInArray,       // after an object of an array of calls
    kBeforeObject,  // white space, then an object
    kTagged,
  };

  void text(char c);
  void plain(char c);
  void content(std::string_view text);
  void flush_space();
  bool frame(char c);
  bool opened(char c);
  bool header(char c);
  bool name_line(char c);
  bool begin_headed(std::string id, std::string name, char c);
  bool object(char c);
  bool tagged(char c);
  bool headed_arguments(char c);
  bool closing(char c);
  bool in_array(char c);
  bool start_object(char c);
  void end_frame();
  void fail(char c);
  bool go(State state) {
    state_ = state;
    return true;
  }

  ToolFormat format_;
  std::vector<OfferedTool> tools_;
  std::vector<std::string> names_;
  std::string_view marker_;  // empty if calls are only at the answer's start
  State state_ = State::kText;
  std::size_t matched_ = 0;    // bytes of the marker, python tag or end mark
  std::string space_;          // white space that is dropped if a call follows
  std::string held_;           // bytes from the marker on that are in no piece yet
  std::size_t header_at_ = 0;  // in held_
  bool content_seen_ = false;  // since the last call, other than white space
  int calls_ = 0;
  bool in_call_ = false;
  bool in_array_ = false;  // Granite, Command: the calls are in an array
  std::optional<CallObject> object_;
  std::optional<TaggedCall> tagged_;
  ArgumentsReader arguments_;
  std::vector<ToolPiece> pieces_;
};

void ToolCallParser::Impl::content(std::string_view text) {
  if (text.empty()) return;
  if (pieces_.empty() || !std::holds_alternative<ContentPiece>(pieces_.back())) {
    pieces_.emplace_back(ContentPiece{});
  }
  std::get<ContentPiece>(pieces_.back()).text += text;
}

void ToolCallParser::Impl::begin(std::string_view id, std::string_view name) {
  // Templates write one newline between content and a call. It belongs to the format, as does white
  // space between two calls.
  space_.clear();
  held_.clear();
  content_seen_ = false;
  in_call_ = true;
  pieces_.emplace_back(CallBegin{calls_++, std::string(id), std::string(name)});
}

void ToolCallParser::Impl::arguments(std::string_view text) {
  held_.clear();
  if (pieces_.empty() || !std::holds_alternative<ArgumentsPiece>(pieces_.back())) {
    pieces_.emplace_back(ArgumentsPiece{calls_ - 1, {}});
  }
  std::get<ArgumentsPiece>(pieces_.back()).text += text;
}

void ToolCallParser::Impl::flush_space() {
  content(space_);
  space_.clear();
}

void ToolCallParser::Impl::plain(char c) {
  if (!is_json_space(c)) {
    flush_space();
    content_seen_ = true;
    content({&c, 1});
    return;
  }
  if (content_seen_) flush_space();
  if (content_seen_ && c != '\n') {
    content({&c, 1});
    return;
  }
  space_ += c;
  if (space_.size() == kMaxSpaceBytes) flush_space();
}

void ToolCallParser::Impl::text(char c) {
  if (marker_.empty()) {
    content({&c, 1});
    return;
  }
  if (matched_ > 0 && c != marker_[matched_]) {
    // A marker's first byte occurs in it once only, so no other match can begin inside this one.
    flush_space();
    content(held_);
    held_.clear();
    content_seen_ = true;
    matched_ = 0;
  }
  if (c != marker_[matched_]) {
    plain(c);
    return;
  }
  held_ += c;
  if (++matched_ == marker_.size()) {
    matched_ = 0;
    state_ = State::kOpened;
  }
}

void ToolCallParser::Impl::step(char c) {
  if (state_ == State::kText) {
    text(c);
    return;
  }
  held_ += c;
  if (!frame(c) || held_.size() > kMaxHeldBytes) fail(c);
}

// Reads one byte inside a call, the last of held_. Returns false if the format forbids it there.
bool ToolCallParser::Impl::frame(char c) {
  switch (state_) {
    case State::kOpened:
      return opened(c);
    case State::kTag:
      if (c != kPythonTag[matched_]) return false;
      if (++matched_ == kPythonTag.size()) state_ = State::kBeforeObject;
      return true;
    case State::kHeader:
      return format_ == ToolFormat::kGlm4 ? name_line(c) : header(c);
    case State::kObject:
      return object(c);
    case State::kHeadedArguments:
      return headed_arguments(c);
    case State::kClosing:
      return closing(c);
    case State::kInArray:
      return in_array(c);
    case State::kBeforeObject:
      return is_json_space(c) || start_object(c);
    case State::kTagged:
      return tagged(c);
    case State::kText:
      break;
  }
  return false;
}

bool ToolCallParser::Impl::opened(char c) {
  if (is_json_space(c)) return true;
  switch (format_) {
    case ToolFormat::kLlama3:
      if (c == ';' && calls_ > 0) return true;
      if (c != kPythonTag.front()) return start_object(c);
      matched_ = 1;
      return go(State::kTag);
    case ToolFormat::kMistral:
      if (c == '[') return go(State::kBeforeObject);
      header_at_ = held_.size() - 1;
      state_ = State::kHeader;
      return header(c);
    case ToolFormat::kGlm4:
      header_at_ = held_.size() - 1;
      state_ = State::kHeader;
      return name_line(c);
    case ToolFormat::kGranite:
    case ToolFormat::kCommand:
      in_array_ = c == '[';
      return in_array_ ? go(State::kBeforeObject) : start_object(c);
    case ToolFormat::kQwenCoder:
    case ToolFormat::kGlm:
      tagged_.emplace(format_ == ToolFormat::kGlm ? kGlmTags : kQwenTags, tools_);
      state_ = State::kTagged;
      return tagged(c);
    default:
      return start_object(c);
  }
}

bool ToolCallParser::Impl::tagged(char c) {
  const ScanStep step = tagged_->step(c, *this);
  if (step != ScanStep::kDone) return step == ScanStep::kMore;
  end_frame();
  if (format_ == ToolFormat::kQwenCoder) state_ = State::kClosing;
  return true;
}

bool ToolCallParser::Impl::start_object(char c) {
  object_.emplace(names_);
  state_ = State::kObject;
  return object(c);
}

bool ToolCallParser::Impl::header(char c) {
  const std::string_view text = std::string_view(held_).substr(header_at_);
  if (c != '{') return may_become_header(text);
  const std::optional<Header> header = parse_header(text.substr(0, text.size() - 1));
  if (!header || std::find(names_.begin(), names_.end(), header->name) == names_.end()) {
    return false;
  }
  return begin_headed(std::string(header->id), std::string(header->name), c);
}

// Reads GLM-4's name of an offered tool, a line end, and the brace that opens the arguments.
bool ToolCallParser::Impl::name_line(char c) {
  const std::string_view text = std::string_view(held_).substr(header_at_);
  const std::size_t line_end = text.find('\n');
  const std::string_view name = trim(text.substr(0, line_end));
  if (line_end == std::string_view::npos) {
    return std::any_of(names_.begin(), names_.end(),
                       [&](const std::string& known) { return known.starts_with(name); });
  }
  if (std::find(names_.begin(), names_.end(), name) == names_.end()) return false;
  return is_json_space(c) || (c == '{' && begin_headed({}, std::string(name), c));
}

bool ToolCallParser::Impl::begin_headed(std::string id, std::string name, char c) {
  begin(id, name);
  arguments_ = {};
  state_ = State::kHeadedArguments;
  return headed_arguments(c);
}

bool ToolCallParser::Impl::headed_arguments(char c) {
  std::string out;
  const ScanStep step = arguments_.step(c, out);
  if (!out.empty()) arguments(out);
  if (step == ScanStep::kDone) {
    end_frame();
    if (format_ == ToolFormat::kGlm4) state_ = State::kOpened;
  }
  return step != ScanStep::kFail;
}

bool ToolCallParser::Impl::object(char c) {
  const ScanStep step = object_->step(c, *this);
  if (step != ScanStep::kDone) return step == ScanStep::kMore;
  in_call_ = false;
  held_.clear();
  matched_ = 0;
  switch (format_) {
    case ToolFormat::kHermes:
      return go(State::kClosing);
    case ToolFormat::kGranite:
    case ToolFormat::kCommand:
      return go(in_array_ ? State::kInArray : State::kClosing);
    case ToolFormat::kMistral:
      return go(State::kInArray);
    default:
      return go(State::kOpened);
  }
}

bool ToolCallParser::Impl::closing(char c) {
  const std::string_view mark = closing_mark_of(format_);
  if (matched_ == 0 && is_json_space(c)) return true;
  if (c != mark[matched_]) return false;
  if (++matched_ == mark.size()) end_frame();
  return true;
}

bool ToolCallParser::Impl::in_array(char c) {
  if (is_json_space(c)) return true;
  if (c == ']' && format_ == ToolFormat::kMistral) {
    end_frame();
  } else if (c == ']') {
    held_.clear();
    state_ = State::kClosing;
  }
  if (c == ',') state_ = State::kBeforeObject;
  return c == ']' || c == ',';
}

void ToolCallParser::Impl::end_frame() {
  in_call_ = false;
  held_.clear();
  matched_ = 0;
  state_ = State::kText;
}

// Turns the held bytes, which are not a call, into content. Only their end is searched again, for
// the beginning of a marker, so that any text takes linear time.
void ToolCallParser::Impl::fail(char c) {
  held_.pop_back();
  const std::string held = std::exchange(held_, {});
  const bool behind_call = state_ == State::kClosing || state_ == State::kInArray;
  std::size_t again = behind_call ? 0 : held.size();
  if (!behind_call && !marker_.empty()) {
    const std::size_t last = held.rfind(marker_.front());
    const bool whole = last == 0 && held.size() == marker_.size();
    const bool begins = last != std::string::npos && marker_.starts_with(held.substr(last));
    if (begins && !whole) again = last;
  }
  state_ = State::kText;
  matched_ = 0;
  if (again > 0) {
    flush_space();
    content(std::string_view(held).substr(0, again));
    content_seen_ = true;
  }
  for (const char h : held.substr(again)) step(h);
  step(c);
}

void ToolCallParser::Impl::finish(bool cut_off) {
  if (state_ == State::kTagged) tagged_->finish(*this);
  const bool between = state_ == State::kOpened && format_ == ToolFormat::kLlama3;
  const bool nothing = std::all_of(held_.begin(), held_.end(), [&](char c) {
    return is_json_space(c) || (between && c == ';');
  });
  const bool begins_more = cut_off && (state_ != State::kText || !content_seen_);
  if (calls_ == 0 || (!begins_more && (content_seen_ || !nothing))) {
    flush_space();
    content(held_);
  }
  space_.clear();
  held_.clear();
  state_ = State::kText;
  marker_ = {};
}

ToolCallParser::ToolCallParser(ToolFormat format, std::vector<OfferedTool> tools)
    : impl_(std::make_unique<Impl>(format, std::move(tools))) {}
ToolCallParser::~ToolCallParser() = default;
ToolCallParser::ToolCallParser(ToolCallParser&&) noexcept = default;
ToolCallParser& ToolCallParser::operator=(ToolCallParser&&) noexcept = default;

std::vector<ToolPiece> ToolCallParser::push(std::string_view text) {
  for (const char c : text) impl_->step(c);
  return impl_->take();
}

bool ToolCallParser::in_call() const {
  return impl_->in_call();
}

std::vector<ToolPiece> ToolCallParser::finish(bool cut_off) {
  impl_->finish(cut_off);
  return impl_->take();
}

}  // namespace protean
