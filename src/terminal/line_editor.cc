#include "terminal/line_editor.h"

#include <histedit.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "terminal/output.h"

namespace protean {
namespace {

constexpr int kHistoryLines = 1000;

// libedit calls this with the editor alone: the prompt travels as its client data.
char* prompt_of(EditLine* editor) {
  std::string* prompt = nullptr;
  ::el_get(editor, EL_CLIENTDATA, static_cast<void*>(&prompt));
  return prompt->data();
}

// libedit reads characters by the locale: a line may hold any UTF-8.
void choose_locale() {
  if (std::setlocale(LC_CTYPE, "") == nullptr || MB_CUR_MAX == 1) {
    std::setlocale(LC_CTYPE, "C.UTF-8");
  }
}

}  // namespace

LineEditor::LineEditor() {
  if (::isatty(STDIN_FILENO) == 0) {
    return;
  }
  choose_locale();
  history_ = ::history_init();
  editor_ = ::el_init("protean", stdin, stdout, stderr);
  if (editor_ == nullptr) {
    return;
  }
  HistEvent event{};
  ::history(history_, &event, H_SETSIZE, kHistoryLines);
  ::el_set(editor_, EL_CLIENTDATA, static_cast<void*>(&prompt_));
  ::el_set(editor_, EL_PROMPT, prompt_of);
  ::el_set(editor_, EL_EDITOR, "emacs");
  ::el_set(editor_, EL_HIST, ::history, history_);
}

LineEditor::~LineEditor() {
  if (editor_ != nullptr) {
    ::el_end(editor_);
  }
  if (history_ != nullptr) {
    ::history_end(history_);
  }
}

std::optional<std::string> LineEditor::read(const std::string& prompt) {
  std::string line;
  if (editor_ == nullptr) {
    return std::getline(std::cin, line) ? std::optional(std::move(line)) : std::nullopt;
  }
  prompt_ = prompt;
  int length = 0;
  const char* text = ::el_gets(editor_, &length);
  if (text == nullptr || length <= 0) {
    print_text("\n");  // the shell's prompt begins a line
    return std::nullopt;
  }
  line.assign(text, static_cast<std::size_t>(length));
  if (line.ends_with('\n')) {
    line.pop_back();
  }
  if (!line.empty()) {
    HistEvent event{};
    ::history(history_, &event, H_ENTER, line.c_str());
  }
  return line;
}

TerminalSettings::TerminalSettings() {
  if (termios settings{}; ::tcgetattr(STDIN_FILENO, &settings) == 0) {
    settings_ = settings;
  }
}

void TerminalSettings::restore() const {
  if (settings_) {
    ::tcsetattr(STDIN_FILENO, TCSANOW, &*settings_);
  }
}

}  // namespace protean
