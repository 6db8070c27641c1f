#include "base/log.h"

#include <fmt/chrono.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/background_queue.h"
#include "base/log_output.h"

namespace protean::log {
namespace {

constexpr std::size_t kMostLinesHeld = 8192;
constexpr std::array<std::string_view, 5> kNames = {"debug", "info", "warning", "error", "off"};

// Logs go to standard error, because standard output carries the result that the user asked for.
void write_out(std::string_view text) {
  while (!text.empty()) {
    const ssize_t size = ::write(STDERR_FILENO, text.data(), text.size());
    if (size < 0 && errno != EINTR) {
      return;  // no place is left to report to
    }
    text.remove_prefix(size > 0 ? static_cast<std::size_t>(size) : 0);
  }
}

// Returns the length in bytes of the UTF-8 character at the start of the text; 0 if there is none.
std::size_t character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t size = byte(0) < 0x80   ? 1
                           : byte(0) < 0xC2 ? 0
                           : byte(0) < 0xE0 ? 2
                           : byte(0) < 0xF0 ? 3
                           : byte(0) < 0xF5 ? 4
                                            : 0;
  for (std::size_t i = 1; i < size; ++i) {
    if (i >= text.size() || (byte(i) & 0xC0) != 0x80) {
      return 0;
    }
  }
  return size;
}

// Escapes control characters and invalid UTF-8, so that text from clients and file names can
// neither break a line nor the JSON.
void append_escaped(std::string& out, std::string_view text, bool json) {
  while (!text.empty()) {
    const std::size_t size = character(text);
    const char c = text.front();
    if (size == 0) {
      out += '?';
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += json ? fmt::format("\\u{:04x}", c) : fmt::format("\\x{:02x}", c);
    } else if (json && (c == '"' || c == '\\')) {
      out.append({'\\', c});
    } else {
      out += text.substr(0, size);
    }
    text.remove_prefix(size == 0 ? 1 : size);
  }
}

void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  append_escaped(out, text, true);
  out += '"';
}

void append_value(std::string& out, const Field& field, bool json) {
  if (const std::string* text = std::get_if<std::string>(&field.value)) {
    if (json || text->empty() || text->find(' ') != std::string::npos) {
      append_quoted(out, *text);
    } else {
      append_escaped(out, *text, false);
    }
  } else if (const std::int64_t* number = std::get_if<std::int64_t>(&field.value)) {
    out += std::to_string(*number);
  } else {
    out += fmt::format("{:.1f}", std::get<double>(field.value));
  }
}

std::string line_of(Level level, std::string_view message, std::span<const Field> fields,
                    bool json) {
  const auto now = std::chrono::system_clock::now();
  const auto second = std::chrono::floor<std::chrono::seconds>(now);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now - second).count();
  const std::time_t time = std::chrono::system_clock::to_time_t(second);
  const std::string_view name = to_string(level);
  std::string line;
  if (json) {
    line = fmt::format(R"({{"time":"{:%FT%T}.{:03}Z","level":"{}","message":)", fmt::gmtime(time),
                       ms, name);
    append_quoted(line, message);
  } else {
    line = fmt::format("{:%F %T}.{:03} {} ", fmt::localtime(time), ms, name);
    append_escaped(line, message, false);
  }
  for (const Field& field : fields) {
    if (json) {
      line += ',';
      append_quoted(line, field.name);
      line += ':';
    } else {
      line.append(" ").append(field.name).append("=");
    }
    append_value(line, field, json);
  }
  line += json ? "}\n" : "\n";
  return line;
}

class Output {
 public:
  void set_level(Level level) { level_ = level; }
  Level level() const { return level_; }
  void set_format(Format format) { json_ = format == Format::kJson; }

  void write(Level level, std::string_view message, std::span<const Field> fields) {
    if (level < level_ || level == Level::kOff) {
      return;
    }
    std::string line = line_of(level, message, fields, json_);
    const std::lock_guard lock(mutex_);
    if (queue_ != nullptr) {
      queue_->put(std::move(line));
    } else {
      write_out(line);
    }
  }

  void begin_background() {
    const std::lock_guard lock(mutex_);
    queue_ = std::make_unique<BackgroundQueue<std::string>>(
        kMostLinesHeld, [](const std::vector<std::string>& lines) {
          std::string text;
          for (const std::string& line : lines) {
            text += line;
          }
          write_out(text);
        });
  }
  void end_background() {
    const std::int64_t lost = dropped();
    if (lost > 0) {
      log::warning("{} log lines were dropped: standard error was not read fast enough", lost);
    }
    std::unique_ptr<BackgroundQueue<std::string>> queue;
    {
      const std::lock_guard lock(mutex_);
      queue = std::move(queue_);
    }
  }
  std::int64_t dropped() const {
    const std::lock_guard lock(mutex_);
    return queue_ != nullptr ? static_cast<std::int64_t>(queue_->dropped()) : 0;
  }

 private:
  std::atomic<Level> level_ = Level::kInfo;
  std::atomic<bool> json_ = false;
  mutable std::mutex mutex_;  // held only while a line is put into the queue
  std::unique_ptr<BackgroundQueue<std::string>> queue_;
};

Output& output() {
  static const std::unique_ptr<Output> instance = std::make_unique<Output>();
  return *instance;
}

}  // namespace

void set_level(Level level) {
  output().set_level(level);
}

Level level() {
  return output().level();
}

void set_format(Format format) {
  output().set_format(format);
}

std::string_view to_string(Level level) {
  return kNames.at(static_cast<std::size_t>(level));
}

Result<Level> parse_level(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) {
      return static_cast<Level>(i);
    }
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "there is no log level '{}': choose debug, info, warning, error or off", name);
}

void write(Level level, std::string_view line) {
  output().write(level, line, {});
}

void write(Level level, std::string_view message, std::initializer_list<Field> fields) {
  output().write(level, message, {fields.begin(), fields.size()});
}

Background::Background() {
  output().begin_background();
}

Background::~Background() {
  output().end_background();
}

std::int64_t dropped_lines() {
  return output().dropped();
}

}  // namespace protean::log
