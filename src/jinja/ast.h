#pragma once

// The syntax tree of a template. Immutable; values of literals point into it.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "jinja/operators.h"
#include "jinja/value.h"

namespace protean::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star;         // *values
  ExprPtr double_star;  // **values
};

enum class ExprKind : std::uint8_t {
  kLiteral,      // value
  kName,         // text
  kList,         // parts
  kTuple,        // parts
  kDict,         // parts: key, value, key, value ...
  kAttribute,    // parts[0] . text
  kSubscript,    // parts[0] [ parts[1] ]
  kSlice,        // parts[0] [ parts[1] : parts[2] : parts[3] ], bounds may be null
  kCall,         // parts[0] ( arguments )
  kFilter,       // parts[0] | text ( arguments ); parts[0] is null in a filter or set block
  kTest,         // parts[0] is text ( arguments )
  kUnary,        // operators[0] parts[0]
  kArithmetic,   // parts[0] operators[0] parts[1]
  kCompare,      // parts[0] operators[0] parts[1] operators[1] parts[2] ...
  kConcat,       // parts joined as text
  kAnd,          // parts[0] and parts[1]
  kOr,           // parts[0] or parts[1]
  kConditional,  // parts[0] if parts[1] else parts[2], which may be null
};

struct Expr {
  ExprKind kind;
  int line = 0;
  int depth = 1;  // levels of the tree whose root this is
  std::string text;
  Value value;
  std::vector<ExprPtr> parts;
  std::vector<Operator> operators;
  Arguments arguments;
  Builtin builtin = nullptr;  // the filter or test; null if there is none of that name
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

struct Parameter {
  std::string name;
  ExprPtr otherwise;  // the default; null if there is none
};

// A macro, or the body of a call block, which the callee calls as caller().
struct MacroBody {
  std::string name;
  std::vector<Parameter> parameters;
  Body body;
  // As in jinja2, a macro accepts these arguments only if its body refers to their names.
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

enum class StmtKind : std::uint8_t {
  kText,         // text
  kPrint,        // value
  kIf,           // branches, otherwise
  kFor,          // target in value if condition: body, else otherwise
  kSet,          // target = value
  kSetBlock,     // target = body, through the filters in value (may be null)
  kWith,         // assignments, body
  kMacro,        // macro
  kCallBlock,    // value is the call; macro is the caller
  kGeneration,   // body, which is printed: what the assistant said
  kFilterBlock,  // body through the filters in value
  kBreak,
  kContinue,
};

struct Branch {
  ExprPtr condition;
  Body body;
};

struct Stmt {
  StmtKind kind;
  int line = 0;
  std::string text;
  ExprPtr value;
  ExprPtr target;  // kName, kTuple of targets, or kAttribute of a name for a namespace
  ExprPtr condition;
  Body body;
  Body otherwise;
  std::vector<Branch> branches;
  std::vector<std::pair<ExprPtr, ExprPtr>> assignments;
  MacroBody macro;
  bool recursive = false;
};

struct Syntax {
  Body body;
};

}  // namespace protean::jinja
