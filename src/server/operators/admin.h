#pragma once

#include <functional>
#include <string>

#include "http/api_keys.h"
#include "http/handler.h"
#include "server/service.h"

namespace protean {

// What an operator may ask, on a port of its own: health, metrics, the form and its morphs, another
// form, the log level, and to drain. With a key, that opens it. Without one only this machine
// reaches it, and no web page: a request that a browser sent for one is refused.
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

// An address that only this machine can reach.
bool is_loopback(const std::string& host);

}  // namespace protean
