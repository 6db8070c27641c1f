// How the service passes operators' wishes to the fleet, and its answers to them.

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <utility>

#include "base/check.h"
#include "server/operators/form_json.h"
#include "server/operators/groups_json.h"
#include "server/service.h"

namespace protean {

namespace json = boost::json;

std::pair<std::uint64_t, std::shared_ptr<PendingReply>> Service::new_wish() {
  auto pending = std::make_shared<PendingReply>();
  wishes_.emplace(++last_id_, pending);
  return {last_id_, std::move(pending)};
}

std::shared_ptr<PendingReply> Service::ask_form(ReplicaId replica, FormWish wish) {
  const auto [id, pending] = new_wish();
  engines_.tell({environment_.clock(), WantForm{id, std::move(wish)}, replica});
  return pending;
}

std::shared_ptr<PendingReply> Service::ask_migration(ReplicaId from, ReplicaId to, int requests) {
  const auto [id, pending] = new_wish();
  engines_.tell({environment_.clock(), WantMigration{id, to, requests}, from});
  return pending;
}

std::shared_ptr<PendingReply> Service::ask_groups(GroupWish wish) {
  const auto [id, pending] = new_wish();
  engines_.tell({environment_.clock(), WantGroups{id, std::move(wish)}, {}});
  return pending;
}

void Service::answer_wish(std::uint64_t wish, const Result<json::object>& shown) {
  const auto found = wishes_.find(wish);
  check(found != wishes_.end(), "a wish is answered once");
  PendingReply& pending = *found->second;
  if (shown.ok()) {
    pending.reply = HttpReply{.status = 202, .body = json::serialize(*shown)};
  } else {
    const Error& error = shown.error();
    const int status = error.code == ErrorCode::kExhausted     ? 409
                       : error.code == ErrorCode::kUnavailable ? 503
                                                               : 400;
    pending.reply = error_reply({.status = status, .message = error.message});
  }
  if (pending.on_ready) {
    pending.on_ready();
  }
  wishes_.erase(found);
}

void Service::on(const WishAnswered& answered, const OutputBatch&) {
  answer_wish(answered.wish_id, answered.morph.ok()
                                    ? Result<json::object>(shown_morph(*answered.morph))
                                    : answered.morph.error());
}

void Service::on(const MigrationAnswered& answered, const OutputBatch&) {
  answer_wish(answered.wish_id,
              answered.requests.ok()
                  ? Result<json::object>(json::object{{"migrating", *answered.requests}})
                  : answered.requests.error());
}

void Service::on(const GroupsAnswered& answered, const OutputBatch&) {
  answer_wish(answered.wish_id, answered.changes.ok()
                                    ? Result<json::object>(shown_changes(*answered.changes))
                                    : answered.changes.error());
}

}  // namespace protean
