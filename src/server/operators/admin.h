#pragma once

#include <functional>
#include <string>

#include "http/api_keys.h"
#include "http/handler.h"
#include "server/service.h"

namespace protean {

// Answers what an operator may ask, on a port of its own: health, metrics, the form and its morphs,
// another form, the log level, and to drain. With a key, only that opens it. Without one the port
// is on a loopback address and a PageGuard stands before it.
class Admin final : public HttpHandler {
 public:
  struct Setting {
    ApiKeys keys;
    std::string version;
    std::function<void()> drain;  // from the io thread; returns at once
  };
  Admin(Service& service, Setting setting) : service_(service), setting_(std::move(setting)) {}

  std::optional<HttpReply> refuse_early(const HttpCall& call) const override;
  Answer handle(const HttpCall& call) override;
  ErrorStyle error_style(const HttpCall&) const override { return ErrorStyle::kOpenAi; }
  bool routine(const HttpCall&) const override { return true; }
  void count(const HttpCall& call, int status) override;
  bool draining() const override { return service_.draining(); }

 private:
  HttpReply form_reply() const;
  Answer want_form(const HttpCall& call);

  Service& service_;
  const Setting setting_;
};

}  // namespace protean
