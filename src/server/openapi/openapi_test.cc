#include <gtest/gtest.h>

#include <boost/json/array.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include "server/openapi/openapi_document.h"
#include "server/test_scenes/service_for_test.h"

namespace protean {
namespace {

namespace json = boost::json;

using OpenApi = ServiceTest;

// Returns a body that the path accepts and that holds its required fields only.
json::object least_body(std::string_view path) {
  if (path == "/tokenize") {
    return {{"prompt", "x"}};
  }
  json::object body;
  if (path == "/api/generate") {
    body["prompt"] = "x";  // without it, the call only loads the model
  } else if (path == "/api/chat") {
    body["messages"] = json::array{json::object{{"role", "user"}, {"content", "x"}}};
  }
  for (const Field& field : body_fields(path)) {
    if (!field.required) {
      continue;
    }
    if (field.name == "messages") {
      body["messages"] = json::array{json::object{{"role", "user"}, {"content", "x"}}};
    } else if (field.name == "tokens") {
      body["tokens"] = json::array{1};
    } else if (field.kind == FieldKind::kArray) {
      body[field.name] = json::array{"x"};
    } else if (field.kind == FieldKind::kInteger) {
      body[field.name] = 1;
    } else {
      body[field.name] = "x";
    }
  }
  return body;
}

// Returns values that are not of the field's kind or not within its limits.
json::array wrong_values(const Field& field) {
  switch (field.kind) {
    case FieldKind::kBoolean:
      return {"x", 1, json::array{1}};
    case FieldKind::kInteger: {
      json::array wrong{"x", 1.5, true};
      if (field.least > std::numeric_limits<std::int64_t>::min()) {
        wrong.push_back(field.least - 1);
      }
      if (field.most < kNoLimit) {
        wrong.push_back(field.most + 1);
      }
      return wrong;
    }
    case FieldKind::kNumber:
      return {"x", true, field.range.low - (field.range.low_included ? 1e-3 : 0.0),
              field.range.high + 1e-3};
    case FieldKind::kString:
      return {1, json::object{{"a", 1}}};
    case FieldKind::kArray:
      return {"x", json::object{{"a", 1}}};
    case FieldKind::kObject:
      return {"x", json::array{1}};
    case FieldKind::kAny:
      return {};
  }
  return {};
}

TEST_F(OpenApi, DescribesEveryRouteWithItsMethods) {
  const json::value document = json::parse(get("/openapi.json").body);
  EXPECT_EQ(document.at("openapi"), "3.1.0");
  EXPECT_EQ(document.at("info").at("version"), "9.9");
  const json::object& paths = document.at("paths").get_object();
  EXPECT_EQ(paths.size(), routes().size());
  for (const RouteRow& row : routes()) {
    ASSERT_TRUE(paths.contains(row.path)) << row.path;
    EXPECT_FALSE(row.about.empty()) << row.path;
    for (const auto& [method, key] : {std::pair{"GET", "get"}, std::pair{"POST", "post"}}) {
      EXPECT_EQ(row.allow.find(method) != row.allow.npos,
                paths.at(row.path).get_object().contains(key))
          << method << " " << row.path;
    }
  }
}

// What the tables say is what the server checks: the body of required fields is accepted, each of
// them is missed, and a wrong value of any field is refused by name.
TEST_F(OpenApi, TheServerChecksWhatTheDescriptionSays) {
  int refusals = 0;
  for (const RouteRow& row : routes()) {
    const Fields fields = body_fields(row.path);
    if (fields.empty()) {
      EXPECT_TRUE(row.allow.find("POST") == std::string_view::npos || row.path == "/ping")
          << row.path << " takes a body that is not described";
      continue;
    }
    const std::string path(row.path);
    const json::object body = least_body(row.path);
    const Service::Answer accepted = post(path, json::serialize(body));
    const HttpReply* reply = std::get_if<HttpReply>(&accepted);
    EXPECT_TRUE(reply == nullptr || reply->status == 200) << path << " " << reply->body;
    service.cancel_all({});
    for (const auto& event : sent()) {
      if (const Arrival* arrival = std::get_if<Arrival>(&event.what)) {
        deliver({finished(arrival->request.id, FinishReason::kCancelled, 0)});
      }
    }
    for (const Field& field : fields) {
      json::array wrong = wrong_values(field);
      if (field.required) {
        wrong.push_back(nullptr);
      }
      for (const json::value& value : wrong) {
        json::object spoilt = body;
        spoilt[field.name] = value;
        const HttpReply refusal = refused(path, json::serialize(spoilt));
        EXPECT_EQ(refusal.status, 400) << path << " " << json::serialize(spoilt);
        EXPECT_NE(refusal.body.find(field.name), std::string::npos) << refusal.body;
        ++refusals;
      }
    }
  }
  EXPECT_GT(refusals, 400);
}

TEST_F(OpenApi, ThePageShowsEveryPathAndLoadsNothing) {
  const HttpReply page = get("/docs");
  EXPECT_EQ(page.content_type, "text/html; charset=utf-8");
  for (const RouteRow& row : routes()) {
    EXPECT_NE(page.body.find("<code>" + std::string(row.path) + "</code>"), std::string::npos);
  }
  EXPECT_NE(page.body.find("<code>stream_options.include_usage</code>"), std::string::npos);
  EXPECT_NE(page.body.find("<code>messages[].role</code>"), std::string::npos);
  for (const char* loads : {"<script", "<link", "<img", "src=", "href=", "url(", "@import"}) {
    EXPECT_EQ(page.body.find(loads), std::string::npos) << loads;
  }
  const auto policy =
      std::find_if(page.headers.begin(), page.headers.end(),
                   [](const auto& header) { return header.first == "Content-Security-Policy"; });
  ASSERT_NE(policy, page.headers.end());
  EXPECT_NE(policy->second.find("default-src 'none'; style-src 'sha256-"), std::string::npos);
}

}  // namespace
}  // namespace protean
