#pragma once

#include <boost/json/array.hpp>
#include <set>
#include <string>
#include <string_view>

namespace protean {

// Builds OpenAI's chat messages, which chat templates understand, for dialects that write one turn
// as several items or blocks. Consecutive texts and calls of the assistant become one message, and
// so do consecutive texts of the system.
class ChatTurns {
 public:
  enum class UserTurns { kKeep, kJoin };  // what becomes of consecutive texts of the user
  explicit ChatTurns(UserTurns users) : users_(users) {}

  void system(std::string_view text) { add_text("system", text, true); }
  void user(std::string_view text) { add_text("user", text, users_ == UserTurns::kJoin); }
  void assistant(std::string_view text) { add_text("assistant", text, true); }
  // Adds a call by the assistant. The arguments are JSON text.
  void call(std::string_view id, std::string_view name, std::string_view arguments);
  // Adds the result of a call. Returns false and adds nothing if there has been no call of that id.
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
