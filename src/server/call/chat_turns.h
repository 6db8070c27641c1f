#pragma once

#include <boost/json/array.hpp>
#include <set>
#include <string>
#include <string_view>

namespace protean {

// Makes OpenAI's chat messages, which chat templates understand, of dialects that write one turn as
// several items or blocks: an assistant's texts and its calls become one message, and so do texts
// of the system that follow each other.
class ChatTurns {
 public:
  enum class UserTurns { kKeep, kJoin };  // of texts of the user that follow each other
  explicit ChatTurns(UserTurns users) : users_(users) {}

  void system(std::string_view text) { add_text("system", text, true); }
  void user(std::string_view text) { add_text("user", text, users_ == UserTurns::kJoin); }
  void assistant(std::string_view text) { add_text("assistant", text, true); }
  // By the assistant; arguments are JSON text.
  void call(std::string_view id, std::string_view name, std::string_view arguments);
  // What a call gave. False: there has been no call of that id, and nothing is added.
  bool result(std::string_view call_id, std::string_view text);

  bool ends_with_assistant() const;
  boost::json::array take() { return std::move(messages_); }

 private:
  bool last_is(std::string_view role) const;
  void add_text(std::string_view role, std::string_view text, bool join);

  const UserTurns users_;
  boost::json::array messages_;
  std::set<std::string, std::less<>> call_ids_;
};

}  // namespace protean
