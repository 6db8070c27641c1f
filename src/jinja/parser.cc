#include "jinja/parser.h"

#include <algorithm>

#include "jinja/expression_parser.h"
#include "jinja/name_check.h"
#include "jinja/token_stream.h"

namespace protean::jinja {
namespace {

constexpr std::size_t kMaxSourceBytes = 1 << 20;
constexpr int kMaxBlocks = 40;  // levels of nested blocks

using StmtPtr = std::unique_ptr<Stmt>;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)), expressions_(tokens_) {}

  Syntax run() { return {body_until({})}; }

 private:
  using Ends = std::vector<std::string_view>;

  // Parses statements up to a tag that is one of `ends`. Its name becomes the current token.
  Body body_until(const Ends& ends) {
    if (++blocks_ > kMaxBlocks) tokens_.fail_here("blocks are too deeply nested");
    Body body;
    while (!tokens_.at(TokenKind::kEnd)) {
      const int line = tokens_.peek().line;
      if (tokens_.at(TokenKind::kData)) {
        StmtPtr text = make(StmtKind::kText, line);
        text->text = tokens_.next().text;
        body.push_back(std::move(text));
      } else if (tokens_.at(TokenKind::kVariableBegin)) {
        tokens_.next();
        body.push_back(print(line));
        tokens_.expect(TokenKind::kVariableEnd);
      } else {
        tokens_.expect(TokenKind::kBlockBegin);
        if (!tokens_.at(TokenKind::kName)) tokens_.unexpected("a tag's name");
        if (std::find(ends.begin(), ends.end(), tokens_.peek().text) != ends.end()) {
          --blocks_;
          return body;
        }
        statement(body);
        tokens_.expect(TokenKind::kBlockEnd);
      }
    }
    if (!ends.empty()) tokens_.unexpected("the tag " + std::string(ends.back()));
    --blocks_;
    return body;
  }

  // Parses from a tag's end to the tag that closes it. Its name becomes the current token.
  Body block(const Ends& ends) {
    tokens_.skip_operator(":");
    tokens_.expect(TokenKind::kBlockEnd);
    return body_until(ends);
  }
  Body closed_block(std::string_view end) {
    Body body = block({end});
    tokens_.next();
    return body;
  }

  static StmtPtr make(StmtKind kind, int line) {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = line;
    return stmt;
  }

  StmtPtr print(int line) {
    StmtPtr stmt = make(StmtKind::kPrint, line);
    stmt->value = expressions_.tuple({});
    return stmt;
  }

  void statement(Body& body) {
    struct Tag {
      std::string_view name;
      StmtPtr (Parser::*parse)(int line);
    };
    static constexpr Tag kTags[] = {
        {"if", &Parser::if_tag},       {"for", &Parser::for_tag},
        {"set", &Parser::set_tag},     {"macro", &Parser::macro_tag},
        {"call", &Parser::call_tag},   {"filter", &Parser::filter_tag},
        {"with", &Parser::with_tag},   {"generation", &Parser::generation_tag},
        {"break", &Parser::break_tag}, {"continue", &Parser::break_tag},
    };
    const int line = tokens_.peek().line;
    const std::string name = tokens_.peek().text;
    if (name == "print") return print_tag(body, line);
    for (const Tag& tag : kTags) {
      if (tag.name == name) {
        if (name != "break" && name != "continue") tokens_.next();
        body.push_back((this->*tag.parse)(line));
        return;
      }
    }
    constexpr std::string_view kRefused[] = {"include", "import",     "from", "extends",
                                             "block",   "autoescape", "do",   "trans"};
    if (std::find(std::begin(kRefused), std::end(kRefused), name) == std::end(kRefused)) {
      throw Failure{make_error(ErrorCode::kInvalidArgument, "unknown tag '{}'", name), line};
    }
    throw Failure{make_error(ErrorCode::kUnsupported, "the tag '{}' is not supported", name), line};
  }

  void print_tag(Body& body, int line) {
    tokens_.next();
    while (!tokens_.at(TokenKind::kBlockEnd)) {
      StmtPtr stmt = make(StmtKind::kPrint, line);
      stmt->value = expressions_.expression();
      body.push_back(std::move(stmt));
      if (!tokens_.at(TokenKind::kBlockEnd)) tokens_.expect_operator(",");
    }
  }

  StmtPtr if_tag(int line) {
    StmtPtr stmt = make(StmtKind::kIf, line);
    do {
      Branch branch;
      branch.condition = expressions_.tuple({.conditional = false});
      branch.body = block({"elif", "else", "endif"});
      stmt->branches.push_back(std::move(branch));
    } while (tokens_.skip_name("elif"));
    if (tokens_.skip_name("else")) stmt->otherwise = block({"endif"});
    tokens_.next();
    return stmt;
  }

  StmtPtr for_tag(int line) {
    StmtPtr stmt = make(StmtKind::kFor, line);
    stmt->target = expressions_.target();
    tokens_.expect_name("in");
    stmt->value = expressions_.tuple({.conditional = false});
    if (tokens_.skip_name("if")) stmt->condition = expressions_.expression();
    stmt->recursive = tokens_.skip_name("recursive");
    ++loops_;
    stmt->body = block({"endfor", "else"});
    --loops_;
    if (tokens_.skip_name("else")) stmt->otherwise = block({"endfor"});
    tokens_.next();
    return stmt;
  }

  StmtPtr set_tag(int line) {
    StmtPtr stmt = make(StmtKind::kSet, line);
    if (tokens_.peek(1).is(TokenKind::kOperator, ".")) {
      stmt->target = namespace_attribute();
    } else {
      stmt->target = expressions_.target();
    }
    if (tokens_.skip_operator("=")) {
      stmt->value = expressions_.tuple({});
      return stmt;
    }
    stmt->kind = StmtKind::kSetBlock;
    stmt->value = expressions_.block_filters(false);
    stmt->body = closed_block("endset");
    return stmt;
  }

  ExprPtr namespace_attribute() {
    auto name = std::make_unique<Expr>();
    name->kind = ExprKind::kName;
    name->line = tokens_.peek().line;
    name->text = tokens_.expect(TokenKind::kName).text;
    tokens_.next();
    auto attribute = std::make_unique<Expr>();
    attribute->kind = ExprKind::kAttribute;
    attribute->line = name->line;
    attribute->text = tokens_.expect(TokenKind::kName).text;
    attribute->parts.push_back(std::move(name));
    return attribute;
  }

  StmtPtr with_tag(int line) {
    StmtPtr stmt = make(StmtKind::kWith, line);
    while (!tokens_.at(TokenKind::kBlockEnd)) {
      ExprPtr target = expressions_.target();
      tokens_.expect_operator("=");
      stmt->assignments.emplace_back(std::move(target), expressions_.expression());
      if (!tokens_.at(TokenKind::kBlockEnd)) tokens_.expect_operator(",");
    }
    stmt->body = closed_block("endwith");
    return stmt;
  }

  void signature(MacroBody& macro) {
    tokens_.expect_operator("(");
    while (!tokens_.at_operator(")")) {
      Parameter parameter{tokens_.expect(TokenKind::kName).text, nullptr};
      if (tokens_.skip_operator("=")) {
        parameter.otherwise = expressions_.expression();
      } else if (!macro.parameters.empty() && macro.parameters.back().otherwise != nullptr) {
        tokens_.fail_here("a parameter without a default follows one with a default");
      }
      macro.parameters.push_back(std::move(parameter));
      if (!tokens_.at_operator(")")) tokens_.expect_operator(",");
    }
    tokens_.next();
  }

  // Parses a macro's body. break and continue in it cannot refer to a loop around the macro.
  void macro_body(MacroBody& macro, std::string_view end) {
    expressions_.open_macros.push_back(&macro);
    const int loops = std::exchange(loops_, 0);
    macro.body = closed_block(end);
    loops_ = loops;
    expressions_.open_macros.pop_back();
    for (const Parameter& parameter : macro.parameters) {
      if (parameter.name == "caller") {
        if (macro.uses_caller && parameter.otherwise == nullptr) {
          tokens_.fail_here("the parameter 'caller' of a macro needs a default");
        }
        macro.uses_caller = false;
      }
      macro.uses_varargs &= parameter.name != "varargs";
      macro.uses_kwargs &= parameter.name != "kwargs";
    }
  }

  StmtPtr macro_tag(int line) {
    StmtPtr stmt = make(StmtKind::kMacro, line);
    stmt->macro.name = tokens_.expect(TokenKind::kName).text;
    signature(stmt->macro);
    macro_body(stmt->macro, "endmacro");
    return stmt;
  }

  StmtPtr call_tag(int line) {
    StmtPtr stmt = make(StmtKind::kCallBlock, line);
    stmt->macro.name = "caller";
    if (tokens_.at_operator("(")) signature(stmt->macro);
    stmt->value = expressions_.expression();
    if (stmt->value->kind != ExprKind::kCall) tokens_.fail_here("expected a call");
    macro_body(stmt->macro, "endcall");
    return stmt;
  }

  StmtPtr generation_tag(int line) {
    StmtPtr stmt = make(StmtKind::kGeneration, line);
    const int loops = std::exchange(loops_, 0);
    stmt->body = closed_block("endgeneration");
    loops_ = loops;
    return stmt;
  }

  StmtPtr filter_tag(int line) {
    StmtPtr stmt = make(StmtKind::kFilterBlock, line);
    stmt->value = expressions_.block_filters(true);
    stmt->body = closed_block("endfilter");
    return stmt;
  }

  StmtPtr break_tag(int line) {
    if (loops_ == 0) tokens_.fail_here("'" + tokens_.peek().text + "' outside of a loop");
    return make(tokens_.next().text == "break" ? StmtKind::kBreak : StmtKind::kContinue, line);
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  int blocks_ = 0;
  int loops_ = 0;
};

}  // namespace

Syntax parse_template(std::string_view source) {
  if (source.size() > kMaxSourceBytes) fail("the template is longer than 1 MiB");
  Syntax parsed = Parser(source).run();
  check_names(parsed);
  return parsed;
}

}  // namespace protean::jinja
