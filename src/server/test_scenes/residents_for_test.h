#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/json/object.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/residents.h"
#include "server/test_scenes/service_for_test.h"

namespace protean {

// Notes what it is asked for.
struct NotingLoader final : ModelLoader {
  void unload(std::size_t model) override { note("unload", model); }
  void load(std::size_t model) override { note("load", model); }
  Status deploy(const std::string& name, const boost::json::object& fields, bool load) override {
    asked.push_back((load ? "deploy " : "register ") + name);
    fields_of_deploy = fields;
    return {};
  }
  void replace(std::size_t model, const IntentWish& wish) override {
    note("replace", model);
    asked.back() += " " + wish.intent;
    wanted = {wish.batch, wish.prompt_tokens, wish.output_tokens};
    requests_wait = wish.requests_wait;
  }
  std::optional<ModelToMove> choose_move(std::span<const ModelSample> samples) override {
    running.clear();
    may_move.clear();
    output_tokens.clear();
    for (const ModelSample& sample : samples) {
      running.push_back(sample.running);
      may_move.push_back(sample.may_move);
      output_tokens.push_back(sample.output_tokens);
    }
    return std::exchange(move, std::nullopt);
  }
  void morphed(std::size_t model, const Status& how) override {
    note(how.ok() ? "morphed" : "not morphed", model);
    why = how.ok() ? "" : how.error().message;
  }
  void forget_replacement(std::size_t model) override { note("forget replace", model); }
  void lose(std::size_t model, const ReplicaFailure& failure) override {
    note("lose", model);
    why = failure.why;
  }
  void leaves(std::size_t model) override { left.push_back(model); }
  void profile(std::size_t model) override { note("profile", model); }
  void remove(std::size_t model) override { note("remove", model); }
  void take_back_deployment(const std::string& name) override {
    asked.push_back("take back " + name);
  }
  void take_back_replacement(std::size_t model) override { note("take back replace", model); }
  void take_back_profile(std::size_t model) override { note("take back profile", model); }
  void note(const std::string& what, std::size_t model) {
    asked.push_back(what + " " + std::to_string(model));
  }
  std::vector<std::string> take() { return std::exchange(asked, {}); }

  std::vector<std::string> asked;
  boost::json::object fields_of_deploy;  // of the latest one
  std::string why;                       // a morph failed, the latest one
  std::array<int, 3> wanted{};           // of the latest wish: batch, prompt and output tokens
  bool requests_wait = false;            // for the latest wish
  std::vector<int> running;              // requests of the latest samples
  std::vector<bool> may_move;            // of the latest samples
  std::vector<int> output_tokens;
  std::optional<ModelToMove> move;
  std::vector<std::size_t> left;  // models that take no more requests
};

using Asked = std::vector<std::string>;

struct ResidentsTest : ServiceTest {
  ResidentsTest() {
    residents.models().set_state(ServerState::kReady);
    residents.start(&loader);
  }

  std::shared_ptr<Host> make_host(BoundedQueue<Event>& to, const std::string& intent = "") {
    auto host =
        std::make_shared<Host>(HostedModel{model(), {.max_outstanding = 4}, to, nullptr, intent},
                               "9.9", environment(), [](std::shared_ptr<Host>, OutputBatch) {});
    host->service.owner = host;
    return host;
  }
  void deploy_other(bool loaded = true) {
    ServedModel other = model();
    other.names = {"other"};
    residents.deployed(
        std::make_shared<Host>(HostedModel{other, {}, other_inbox, nullptr}, "9.9", environment(),
                               [](std::shared_ptr<Host>, OutputBatch) {}),
        loaded);
  }
  Service& serving() { return *residents.models().services().front(); }
  // Sends a request to what serves now, and keeps its answer.
  void begin() {
    const HttpCall call{.method = "POST",
                        .target = "/v1/completions",
                        .request_id = "r1",
                        .body = R"({"prompt":"a"})"};
    answers.push_back(std::get<std::shared_ptr<GrowingAnswer>>(residents.models().handle(call)));
  }
  // Ends the requests in an inbox, whose service is `service`. Returns their number.
  std::size_t end_all(BoundedQueue<Event>& queue, Service& service) {
    queue.push({});  // pop_all() waits for an event
    std::vector<Event> events = queue.pop_all();
    events.pop_back();
    std::size_t ended = 0;
    for (const Event& event : events) {
      if (const Arrival* arrival = std::get_if<Arrival>(&event.what)) {
        service.deliver({.outputs = {finished(arrival->request.id, FinishReason::kStop, 0)}});
        ++ended;
      }
    }
    answers.clear();
    return ended;
  }
  // Lets time pass until the next look.
  void look() {
    io.restart();
    io.run_one();
  }
  void look_until_asked() {
    for (int looks = 0; looks < 5 && loader.asked.empty(); ++looks) {
      look();
    }
  }
  // Something else is to serve the model, for which there is no memory yet.
  void replace_without_memory() {
    want(R"({"intent":"min-latency"})");
    residents.planned(0, {"TP 2 x PP 1, bf16, KV bf16", estimates});
    residents.replaced(0, make_host(next_inbox, "min-latency"), false);
  }
  // The model is to be served at w8, by a morph.
  void morph() {
    want(R"({"intent":"min-memory"})");
    residents.planned(0, {"TP 1 x PP 1, w8, KV bf16", estimates});
    Form form = serving().model().form.form;
    for (LayerPrecision& layer : form.layer_precision) {
      layer = {Precision::kW8, Precision::kW8};
    }
    residents.changes(
        0, {FormWish{.layers = form.layer_precision, .rest_pages = 100}, "only weights change"});
  }
  // The model is to be served by other engines, which take its requests over.
  void hand_over() {
    residents.planned(0, {"TP 2 x PP 1, bf16, KV bf16", estimates});
    residents.changes(0, {.in_place = std::nullopt,
                          .why = "devices share the model in another way",
                          .hands_over = true});
  }
  ServedModel on_two_devices() {
    ServedModel as = model();
    as.max_model_len = 50;
    as.form.form.group.push_back(whole_model(2, 1, DeviceId{1}));
    return as;
  }
  // The engine has layers at one precision and goes to another one.
  void show(Precision now, Precision wanted) {
    auto status = std::make_shared<FormStatus>(serving().model().form);
    status->wanted = status->form;
    for (std::size_t i = 0; i < status->form.layer_precision.size(); ++i) {
      status->form.layer_precision[i] = {now, now};
      status->wanted.layer_precision[i] = {wanted, wanted};
    }
    serving().deliver({.form = status});
  }
  // The devices of the model's only replica have failed.
  void lose_devices(TimeNs at_ns = 0) {
    auto groups = std::make_shared<GroupsStatus>();
    groups->failed.push_back(
        {.replica = ReplicaId{0}, .at_ns = at_ns, .why = "has lost memory", .devices = {0}});
    serving().deliver({.groups = groups});
  }
  // Returns the id of the wish for a form that is in the inbox, and takes it; 0 if there is none.
  std::uint64_t asked_wish() {
    first_inbox.push({});  // pop_all() waits for an event
    std::vector<Event> events = first_inbox.pop_all();
    events.pop_back();
    std::uint64_t id = 0;
    for (Event& event : events) {
      if (const WantForm* want = std::get_if<WantForm>(&event.what)) {
        id = want->wish_id;
      } else {
        first_inbox.push(std::move(event));
      }
    }
    return id;
  }
  Checked<boost::json::object> want(const std::string& body) {
    return residents.want_intent(serving(), body);
  }
  std::string change(const char* field = "state") {
    const boost::json::object shown = residents.intent_of(serving());
    const boost::json::object& change = shown.at("change").as_object();
    return change.contains(field) ? std::string(change.at(field).as_string()) : "";
  }

  const std::shared_ptr<const std::string> estimates = std::make_shared<const std::string>("{}");
  boost::asio::io_context io;
  NotingLoader loader;
  BoundedQueue<Event> first_inbox{8};
  BoundedQueue<Event> next_inbox{8};
  BoundedQueue<Event> other_inbox{8};
  std::vector<std::shared_ptr<GrowingAnswer>> answers;
  Residents residents{io, {make_host(first_inbox)}, {}, [this] { return now_ns; }};
};

}  // namespace protean
