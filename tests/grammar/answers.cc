// grammar_answers write COUNT SEED [TOKENIZER] < schemas.json
//   Writes random answers. schemas.json is a list of schemas. Prints a line of JSON for each:
//   {"answers": [...]} or {"error": "..."}.
// grammar_answers match < pairs.json
//   Matches texts. pairs.json is a list of [schema, text]. Prints true, false or the error for
//   each.

#include <fmt/format.h>

#include <boost/json.hpp>
#include <iostream>
#include <iterator>
#include <memory>
#include <random>
#include <string>

#include "grammar/grammar.h"
#include "grammar/schema_compiler.h"
#include "tests/grammar/random_model.h"
#include "tests/grammar/token_list.h"

namespace protean {
namespace {

namespace json = boost::json;

json::value read_input() {
  json::parse_options options;
  options.max_depth = 400;
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  return json::parse(text, {}, options);
}

Result<grammar::Automaton> automaton_of(const JsonSchema& schema) {
  grammar::AutomatonBuilder builder;
  const grammar::StateId begin = builder.state();
  const grammar::StateId end = builder.state();
  builder.final(end);
  if (const Status status = grammar::emit_schema(builder, schema, begin, end); !status) {
    return status.error();
  }
  return builder.build(begin);
}

json::object answers_to(const JsonSchema& schema, int count, std::uint32_t seed,
                        const std::pair<const Tokenizer&, GrammarTokens&>& model_parts) {
  const auto automaton = automaton_of(schema);
  if (!automaton) {
    return {{"error", automaton.error().message}};
  }
  std::mt19937 random(seed);
  RandomModel model(model_parts.first, *automaton);
  json::array answers;
  for (int n = 0; n < count; ++n) {
    const auto constraint = model_parts.second.constrain({schema}, json::serialize(schema.schema));
    if (!constraint) {
      return {{"error", constraint.error().message}};
    }
    const auto answer = model.write(**constraint, random, n * 7 % 120, 4000);
    if (!answer.broken.empty()) {
      return {{"error", answer.broken + " after " + answer.text}};
    }
    if (answer.ended) {
      answers.emplace_back(answer.text);
    }
  }
  return {{"answers", std::move(answers)}};
}

int write(int argc, char** argv) {
  const int count = std::stoi(argv[2]);
  const auto seed = static_cast<std::uint32_t>(std::stoul(argv[3]));
  std::unique_ptr<Tokenizer> tokenizer = std::make_unique<TokenList>(TokenList::json_pieces());
  if (argc > 4) {
    auto loaded = load_tokenizer(argv[4]);
    if (!loaded) {
      std::cerr << loaded.error().message << "\n";
      return 1;
    }
    tokenizer = std::move(*loaded);
  }
  GrammarTokens tokens(*tokenizer, tokenizer->vocab_size(), {tokenizer->eos()});
  const json::value schemas = read_input();
  for (const json::value& schema : schemas.as_array()) {
    std::cout << json::serialize(answers_to({.schema = schema}, count, seed, {*tokenizer, tokens}))
              << "\n";
  }
  return 0;
}

int match() {
  const json::value pairs = read_input();
  for (const json::value& pair : pairs.as_array()) {
    const auto compiled =
        Grammar::compile({JsonSchema{.schema = pair.as_array()[0], .open_properties = true}});
    if (compiled) {
      const json::string& text = pair.as_array()[1].as_string();
      std::cout << ((*compiled)->matches({text.data(), text.size()}) ? "true" : "false") << "\n";
    } else {
      std::cout << json::serialize(json::value(compiled.error().message)) << "\n";
    }
  }
  return 0;
}

}  // namespace
}  // namespace protean

int main(int argc, char** argv) {
  try {
    if (argc >= 4 && argc <= 5 && std::string_view(argv[1]) == "write") {
      return protean::write(argc, argv);
    }
    if (argc == 2 && std::string_view(argv[1]) == "match") {
      return protean::match();
    }
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
  std::cerr << "usage: grammar_answers write COUNT SEED [TOKENIZER] | match\n";
  return 2;
}
