#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <string_view>

namespace protean {

// A statement of SQLite with its parameters, in order from 1. It keeps copies of texts.
class SqlStatement {
 public:
  SqlStatement(sqlite3* database, const char* text) {
    sqlite3_prepare_v2(database, text, -1, &statement_, nullptr);
  }
  ~SqlStatement() { sqlite3_finalize(statement_); }
  SqlStatement(const SqlStatement&) = delete;
  SqlStatement& operator=(const SqlStatement&) = delete;

  void bind(std::string_view text) {
    sqlite3_bind_text(statement_, ++bound_, text.data(), static_cast<int>(text.size()),
                      SQLITE_TRANSIENT);
  }
  void bind(int number) { sqlite3_bind_int(statement_, ++bound_, number); }
  void bind(std::int64_t number) { sqlite3_bind_int64(statement_, ++bound_, number); }
  void bind(double number) { sqlite3_bind_double(statement_, ++bound_, number); }
  void skip() { ++bound_; }  // the parameter is NULL

  // Returns SQLITE_ROW, SQLITE_DONE or an error. A statement that did not compile is an error.
  int step() { return statement_ == nullptr ? SQLITE_ERROR : sqlite3_step(statement_); }

  std::string_view text(int column) const {
    const auto* chars = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    return chars == nullptr ? std::string_view() : std::string_view(chars);
  }
  std::int64_t integer(int column) const { return sqlite3_column_int64(statement_, column); }
  double number(int column) const { return sqlite3_column_double(statement_, column); }

 private:
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
};

}  // namespace protean
