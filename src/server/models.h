#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/api_keys.h"
#include "http/handler.h"
#include "server/operators/http_counts.h"
#include "server/routes.h"
#include "server/service.h"

namespace protean {

// Answers the calls of the public port for all models of a server. Gives a call to the service of
// the model that its body names, or to the first one if it names none, and answers calls that
// concern all models, such as the list of them, itself. Belongs to the io thread.
class Models final : public HttpHandler {
 public:
  // The services, at least one, outlive this object or are removed. No two share a name.
  Models(std::vector<Service*> services, ApiKeys keys);

  std::optional<HttpReply> refuse_early(const HttpCall& call) const override;
  // Answers 503 if the call needs more memory than there is, and 500 if it meets a bug.
  Answer handle(const HttpCall& call) override;
  ErrorStyle error_style(const HttpCall& call) const override;
  // Also true for a 503 to a health check: it tells that the server is not ready.
  bool routine(const HttpCall& call, int status) const override;
  void count(const HttpCall& call, int status) override;
  // Counts a call of another port. `handler` is the pattern of its path; "none" if it has no
  // answer.
  void count(std::string_view handler, std::string_view method, int status);
  bool draining() const override { return state() == ServerState::kDraining; }

  const std::vector<Service*>& services() const { return services_; }
  // Adds a model whose names no other one has.
  void add(Service& service) { services_.push_back(&service); }
  // Lets a service answer in the place of another one of the same model.
  void replace(const Service& service, Service& by);
  // Removes a model, which is not the only one: its names are unknown from now on.
  void remove(Service& service) { std::erase(services_, &service); }
  // Returns the service of the model with that name; null if there is none.
  Service* find(std::string_view name) const;
  // Returns the error for a name that no model has. `shown` is the name as UTF-8.
  ApiError unknown(std::string_view shown) const;
  // All models are in the same state.
  void set_state(ServerState state);
  ServerState state() const { return services_.front()->state(); }
  // Returns false if all models are out of service, and none of them will be placed anew: nothing
  // but a new start of the server helps.
  bool in_service() const;

  // Returns true if the devices of a model have failed and it will be placed on others.
  std::function<bool(const Service&)> is_placed_anew = [](const Service&) { return false; };

 private:
  Answer answer(const HttpCall& call);
  Answer answer_by_body(const RouteMatch& match, const HttpCall& call) const;
  HttpReply list_reply() const;
  HttpReply model_reply(const std::string& id) const;
  HttpReply llama_reply(const RouteMatch& match, const HttpCall& call) const;
  HttpReply load_reply() const;
  HttpReply health_reply() const;

  std::vector<Service*> services_;
  const ApiKeys keys_;
  HttpCounts counts_;
};

}  // namespace protean
