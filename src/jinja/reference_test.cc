// Compares renderings byte for byte with Python's jinja2, through tests/jinja/reference.py.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/test_data.h"
#include "jinja/template.h"

namespace protean::jinja {
namespace {

namespace json = boost::json;
using Path = std::filesystem::path;

constexpr std::string_view kNow = "2024-03-05T09:08:07";
constexpr int kNoJinja = 77;

Path cases_folder() {
  return "tests/jinja";  // tests run in the source folder
}

std::string read_text(const Path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Returns Python's results for the cases, in order, or nothing without jinja2.
std::optional<json::array> ask_python(const json::array& cases) {
  const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
  const Path file = Path(testing::TempDir()) / ("jinja_cases_" + name + ".json");
  std::ofstream(file) << json::serialize(cases);
  const std::string command = "/usr/bin/python3 -B '" + (cases_folder() / "reference.py").string() +
                              "' '" + file.string() + "'";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string output;
  char buffer[65536];
  for (std::size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, n);
  const int status = pclose(pipe);
  std::filesystem::remove(file);
  if (WIFEXITED(status) && (WEXITSTATUS(status) == kNoJinja || WEXITSTATUS(status) == 127)) {
    return std::nullopt;
  }
  EXPECT_EQ(status, 0) << "reference.py failed";
  return status == 0 ? json::parse(output).as_array() : json::array();
}

std::tm parse_time(std::string_view iso) {
  std::tm now{};
  strptime(std::string(iso).c_str(), "%Y-%m-%dT%H:%M:%S", &now);
  return now;
}

Result<std::string> render_here(const json::object& one) {
  const Result<Template> parsed = Template::parse(one.at("template").as_string());
  if (!parsed.ok()) return parsed.error();
  Names names{.values = one.at("context").as_object(), .is_own = {}, .now = {}};
  if (const json::value* now = one.if_contains("now")) names.now = parse_time(now->as_string());
  const Result<MarkedText> rendered = parsed->render(names);
  if (!rendered.ok()) return rendered.error();
  return rendered->text;
}

// Expects every case to give the same bytes here and in Python, or to fail in both.
void compare(const json::array& cases, bool must_fail) {
  const auto expected = ask_python(cases);
  if (!expected) GTEST_SKIP() << "needs /usr/bin/python3 with jinja2 (Debian: python3-jinja2)";
  ASSERT_EQ(expected->size(), cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const json::object& one = cases[i].as_object();
    const json::object& there = expected->at(i).as_object();
    const Result<std::string> here = render_here(one);
    const std::string label(one.at("name").as_string());
    if (const json::value* error = there.if_contains("error")) {
      EXPECT_FALSE(here.ok()) << label << "\ngave " << *here << "\nbut Python says " << *error;
      const std::string_view message = error->as_string();
      if (!here.ok() && message.starts_with("TemplateError: ")) {
        EXPECT_NE(here.error().message.find(message.substr(15)), std::string::npos)
            << label << "\n"
            << here.error().message;
      }
      EXPECT_TRUE(must_fail || one.contains("conversation")) << label << "\nfails: " << message;
    } else {
      EXPECT_FALSE(must_fail) << label << "\ndoes not fail in Python";
      ASSERT_TRUE(here.ok()) << label << "\n"
                             << here.error().message << "\nPython gives " << there.at("text");
      EXPECT_EQ(*here, std::string(there.at("text").as_string())) << label;
    }
  }
}

json::array snippet_cases(const char* file) {
  const json::object names =
      json::parse(read_text(cases_folder() / "snippet_context.json")).as_object();
  constexpr std::string_view kSeparator = "\n----\n";
  const std::string text = read_text(cases_folder() / file);
  json::array cases;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(kSeparator, at), text.size());
    json::object context = names;
    context["messages"] = json::array();
    context["tools"] = nullptr;
    context["documents"] = nullptr;
    context["add_generation_prompt"] = true;
    context["bos_token"] = context["eos_token"] = "";
    const std::string source = text.substr(at, end - at);
    cases.push_back({{"name", source}, {"template", source}, {"context", context}, {"now", kNow}});
    at = end + kSeparator.size();
  }
  return cases;
}

json::array chat_cases(const std::string& name, const std::string& source) {
  json::array cases;
  const json::value talks = json::parse(read_text(cases_folder() / "conversations.json"));
  for (const json::value& value : talks.as_array()) {
    const json::object& talk = value.as_object();
    json::object context;
    context["bos_token"] = "<s>";
    context["eos_token"] = "</s>";
    context["documents"] = nullptr;
    context["add_generation_prompt"] =
        !talk.contains("add_generation_prompt") || talk.at("add_generation_prompt").as_bool();
    if (talk.contains("kwargs")) {
      for (const auto& [key, kwarg] : talk.at("kwargs").as_object()) context[key] = kwarg;
    }
    context["tools"] = talk.contains("tools") ? talk.at("tools") : json::value(nullptr);
    context["messages"] = talk.at("messages");
    json::object one{{"name", name + ": " + std::string(talk.at("name").as_string())},
                     {"template", source},
                     {"context", context},
                     {"conversation", true}};
    if (talk.contains("now")) one["now"] = talk.at("now");
    cases.push_back(std::move(one));
  }
  return cases;
}

TEST(JinjaReference, snippets) {
  compare(snippet_cases("snippets.txt"), false);
}
TEST(JinjaReference, failing_snippets) {
  compare(snippet_cases("failing_snippets.txt"), true);
}

TEST(JinjaReference, templates_of_families) {
  json::array cases;
  for (const auto& entry : std::filesystem::directory_iterator(cases_folder() / "templates")) {
    for (auto& one : chat_cases(entry.path().filename().string(), read_text(entry.path()))) {
      cases.push_back(std::move(one));
    }
  }
  ASSERT_GE(cases.size(), 150u);
  compare(cases, false);
}

TEST(JinjaReference, real_template) {
  const Path path = test_data("tokenizers/qwen2.5/chat_template.jinja");
  PROTEAN_REQUIRE_DATA(path);
  compare(chat_cases("qwen2.5", read_text(path)), false);
}

}  // namespace
}  // namespace protean::jinja
