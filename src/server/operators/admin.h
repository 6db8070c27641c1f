#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "http/api_keys.h"
#include "http/handler.h"
#include "server/models.h"
#include "server/residents.h"

namespace protean {

// Answers operators on a port of its own: health, metrics, the models, the fleet of a model
// and its groups, the form of a replica and its morphs, a wish for another form, the log level,
// drain, which models serve and sleep, and the dashboard. ?model=NAME names the model; without it
// the first one is meant. If the port has a key, every call but those of the dashboard's files
// needs it. Without a key the port listens on a loopback address only and a PageGuard protects it.
class Admin final : public HttpHandler {
 public:
  struct Setting {
    ApiKeys keys;
    std::function<void()> drain;  // begins to drain and returns; called on the io thread
    Residents& residents;
  };
  Admin(Models& models, Setting setting) : models_(models), setting_(std::move(setting)) {}

  std::optional<HttpReply> refuse_early(const HttpCall& call) const override;
  Answer handle(const HttpCall& call) override;
  ErrorStyle error_style(const HttpCall&) const override { return ErrorStyle::kOpenAi; }
  bool routine(const HttpCall& call, int status) const override {
    const bool reads = call.method == "GET" || call.method == "HEAD";
    return status < 400 ? reads : models_.routine(call, status);
  }
  void count(const HttpCall& call, int status) override;
  bool draining() const override { return models_.draining(); }

 private:
  HttpReply models_reply() const;
  HttpReply sleep_reply(Service& service) const;
  HttpReply intent_reply(const HttpCall& call, Service& service) const;
  HttpReply plan_reply(const Service& service) const;
  HttpReply profile_reply(const HttpCall& call, Service& service) const;
  HttpReply change_reply(const HttpCall& call) const;
  Answer answer_of(std::string_view path, const HttpCall& call, Service& service);

  Models& models_;
  const Setting setting_;
};

}  // namespace protean
