#pragma once

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "server/models.h"
#include "server/service.h"
#include "server/test_scenes/byte_tokenizer_for_test.h"

namespace protean {

// A service without sockets and engine: tests read the engine's inbox and deliver its outputs.
struct ServiceTest : testing::Test {
  ServiceTest() {
    log::set_level(log::Level::kWarning);
    service.set_state(ServerState::kReady);
  }

  static Form start_form() {
    return {.group = {whole_model(2, 1, DeviceId{0})},
            .layer_precision = std::vector<LayerPrecision>(2),
            .kv = {.blocks = 7}};
  }
  ServedModel model() {
    return {.names = {"tiny", "alias"},
            .tokenizer = &tokenizer,
            .chat_template = &chat_template,
            .defaults = {.stop_ids = {ByteTokenizer::kEos}, .temperature = 0.25F},
            .max_model_len = 100,
            .embedding_size = 2,
            .tool_format = ToolFormat::kHermes,
            .infill = {.prefix = 1, .suffix = 2, .middle = 3},
            .formats = formats,
            .form = {.form = start_form()}};
  }
  Environment environment() {
    return {.clock = [this] { return now_ns; },
            .unix_time_s = [] { return std::int64_t{1'700'000'000}; },
            .random = [this] { return ++random; }};
  }
  Service::Answer post(const std::string& path, const std::string& body) {
    const HttpCall call{.method = "POST", .target = path, .request_id = "r1", .body = body};
    if (auto refusal = models.refuse_early(call)) {
      return *refusal;
    }
    return models.handle(call);
  }
  HttpReply get(const std::string& path, const std::string& method = "GET",
                const std::string& key = "") {
    const HttpCall call{.method = method, .target = path, .authorization = key};
    if (auto refusal = models.refuse_early(call)) {
      return *refusal;
    }
    return std::get<HttpReply>(models.handle(call));
  }
  std::shared_ptr<Generation> generate(const std::string& path, const std::string& body) {
    Service::Answer answer = post(path, body);
    if (const HttpReply* reply = std::get_if<HttpReply>(&answer)) {
      ADD_FAILURE() << reply->status << " " << reply->body;
      return nullptr;
    }
    return std::static_pointer_cast<Generation>(std::get<std::shared_ptr<GrowingAnswer>>(answer));
  }
  HttpReply refused(const std::string& path, const std::string& body) {
    Service::Answer answer = post(path, body);
    HttpReply* reply = std::get_if<HttpReply>(&answer);
    if (reply == nullptr) {
      ADD_FAILURE() << "was accepted: " << body;
      return {};
    }
    return *reply;
  }
  // Returns what was sent to the engine since the last call.
  std::vector<Event> sent() {
    inbox.push({});  // pop_all() waits for an event
    std::vector<Event> events = inbox.pop_all();
    events.pop_back();
    return events;
  }
  std::vector<RequestId> cancels() {
    std::vector<RequestId> ids;
    for (const Event& event : sent()) {
      if (const Cancel* cancel = std::get_if<Cancel>(&event.what)) {
        ids.push_back(cancel->request);
      }
    }
    return ids;
  }
  std::vector<Request> arrivals() {
    std::vector<Request> requests;
    for (Event& event : sent()) {
      if (Arrival* arrival = std::get_if<Arrival>(&event.what)) {
        requests.push_back(std::move(arrival->request));
      }
    }
    return requests;
  }
  void deliver(std::vector<Output> outputs) {
    now_ns += kNsPerMs;
    service.deliver({.at_ns = now_ns, .outputs = std::move(outputs), .observation = observation});
  }
  void tokens(RequestId id, std::string_view text) {
    for (const char c : text) {
      deliver({NewToken{id, static_cast<unsigned char>(c)}});
    }
  }
  Finished finished(RequestId id, FinishReason reason, int output_tokens) {
    return {.request = id,
            .reason = reason,
            .usage = {.prompt_tokens = 3, .cached_tokens = 2, .output_tokens = output_tokens},
            .times = {.arrived_ns = 1, .scheduled_ns = 2, .first_token_ns = 3, .finished_ns = 4}};
  }
  static std::string text_of(const std::vector<boost::json::value>& events) {
    std::string text;
    for (const boost::json::value& event : events) {
      boost::system::error_code ec;
      const boost::json::value* found = event.find_pointer("/choices/0/text", ec);
      found = found == nullptr ? event.find_pointer("/choices/0/delta/content", ec) : found;
      text += found != nullptr && found->is_string() ? found->get_string().c_str() : "";
    }
    return text;
  }
  static boost::json::object error_of(const HttpReply& reply) {
    const boost::json::object error = boost::json::parse(reply.body).at("error").as_object();
    EXPECT_EQ(error.size(), 4U) << reply.body;
    for (const char* field : {"message", "type", "param", "code"}) {
      EXPECT_TRUE(error.contains(field)) << reply.body;
    }
    return error;
  }

  ByteTokenizer tokenizer;
  ChatTemplate chat_template = ChatTemplate::chatml();
  std::shared_ptr<FormatCompiler> formats = std::make_shared<FormatCompiler>(
      tokenizer, tokenizer.vocab_size(), std::vector{ByteTokenizer::kEos});
  BoundedQueue<Event> inbox{8};
  TimeNs now_ns = 1000;
  std::uint64_t random = 40;
  Observation observation;
  Service service{{.max_outstanding = 4},
                  model(),
                  {.model_name = "tiny", .version = "9.9"},
                  environment(),
                  inbox};
  Models models{{&service}, {}};
};

inline std::vector<boost::json::value> events_of(const std::string& text) {
  std::vector<boost::json::value> events;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find("\n\n", at);
    EXPECT_NE(end, std::string::npos);
    EXPECT_EQ(text.substr(at, 6), "data: ");
    const std::string data = text.substr(at + 6, end - at - 6);
    events.push_back(data == "[DONE]" ? boost::json::value(data) : boost::json::parse(data));
    at = end + 2;
  }
  return events;
}

}  // namespace protean
