#pragma once

#include <termios.h>

#include <memory>
#include <optional>
#include <string>

struct editline;
struct history;

namespace protean {

// Reads lines from standard input. On a terminal a line can be edited, and Up and Down bring back
// earlier lines; otherwise lines are read as they come. One thread.
class LineEditor {
 public:
  LineEditor();
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  bool is_terminal() const { return editor_ != nullptr; }

  // Returns the next line without its end, or nothing at the end of input. Shows `prompt` if
  // standard input is a terminal.
  std::optional<std::string> read(const std::string& prompt);

 private:
  std::string prompt_;
  struct history* history_ = nullptr;
  struct editline* editor_ = nullptr;  // null if standard input is no terminal
};

// The terminal's settings as they were at construction. A program that ends in the middle of
// editing a line restores them, otherwise the shell would echo nothing.
class TerminalSettings {
 public:
  TerminalSettings();
  void restore() const;  // from any thread

 private:
  std::optional<termios> settings_;  // nothing if standard input is no terminal
};

}  // namespace protean
