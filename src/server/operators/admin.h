#pragma once

#include <functional>
#include <string>

#include "http/api_keys.h"
#include "http/handler.h"
#include "server/service.h"

namespace protean {

// Answers operators on a port of its own: health, metrics, the fleet and its groups, the form of a
// replica and its morphs, a wish for another form, the log level, drain, and the dashboard. If the
// port has a key, every call but those of the dashboard's files needs it. Without a key the port
// listens on a loopback address only and a PageGuard protects it.
class Admin final : public HttpHandler {
 public:
  struct Setting {
    ApiKeys keys;
    std::string version;
    std::function<void()> drain;  // begins to drain and returns; called on the io thread
  };
  Admin(Service& service, Setting setting) : service_(service), setting_(std::move(setting)) {}

  std::optional<HttpReply> refuse_early(const HttpCall& call) const override;
  Answer handle(const HttpCall& call) override;
  ErrorStyle error_style(const HttpCall&) const override { return ErrorStyle::kOpenAi; }
  bool routine(const HttpCall&) const override { return true; }
  void count(const HttpCall& call, int status) override;
  bool draining() const override { return service_.draining(); }

 private:
  Checked<ReplicaId> replica_of(const HttpCall& call) const;
  HttpReply form_reply(ReplicaId replica) const;
  HttpReply fleet_reply() const;
  HttpReply recording_reply(const HttpCall& call) const;
  Answer migrate(const HttpCall& call);
  Answer want_groups(const HttpCall& call);
  Answer want_form(ReplicaId replica, const HttpCall& call);

  Service& service_;
  const Setting setting_;
};

}  // namespace protean
