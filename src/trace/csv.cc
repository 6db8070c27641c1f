#include <algorithm>
#include <optional>
#include <string>

#include "trace/formats.h"
#include "trace/text.h"

namespace protean {
namespace {

// The places of named columns in the rows of a CSV with a header, in the order of `names`.
class Columns {
 public:
  Columns(std::string_view header, std::initializer_list<std::string_view> names) {
    const auto fields = split_csv(header);
    count_ = fields.size();
    for (const std::string_view name : names) {
      places_.push_back(
          static_cast<std::size_t>(std::find(fields.begin(), fields.end(), name) - fields.begin()));
    }
  }

  // Returns the named fields of a row. Fails if the row has not as many fields as the header.
  Result<std::vector<std::string_view>> of(std::string_view line, const TracePlace& place) const {
    const auto fields = split_csv(line);
    if (fields.size() != count_) {
      return trace_error(place, "the row has {} fields, the header {}", fields.size(), count_);
    }
    std::vector<std::string_view> wanted;
    for (const std::size_t column : places_) {
      wanted.push_back(fields[column]);
    }
    return wanted;
  }

 private:
  std::size_t count_ = 0;
  std::vector<std::size_t> places_;
};

// Calls `row` with the fields of `columns` for each row after the header.
using FieldReader =
    std::function<Status(const std::vector<std::string_view>& fields, const TracePlace& place)>;
Status for_each_row(std::string_view csv, std::string_view name,
                    std::initializer_list<std::string_view> columns, const FieldReader& row) {
  std::optional<Columns> header;
  return for_each_line(csv, name, [&](std::string_view line, const TracePlace& place) -> Status {
    if (!header) {
      header.emplace(line, columns);
      return {};
    }
    const auto fields = header->of(line, place);
    return fields.ok() ? row(*fields, place) : fields.error();
  });
}

Result<TraceRequest> request_of(std::string_view input, std::string_view output,
                                const TracePlace& place) {
  const auto input_tokens = parse_tokens(input, place);
  const auto output_tokens = parse_tokens(output, place);
  if (!input_tokens.ok() || !output_tokens.ok()) {
    return input_tokens.ok() ? output_tokens.error() : input_tokens.error();
  }
  return TraceRequest{.input_tokens = *input_tokens, .output_tokens = *output_tokens};
}

// Removes requests without tokens, which failed when the trace was recorded, and adds a note.
void leave_out_failed(Trace& trace) {
  const auto before = trace.requests.size();
  std::erase_if(trace.requests, [](const TraceRequest& request) {
    return request.output_tokens == 0 || request.input_tokens == 0;
  });
  if (const auto failed = before - trace.requests.size(); failed > 0) {
    trace.notes.push_back(
        fmt::format("left out {} rows with 0 tokens: requests that failed", failed));
  }
}

// Returns the request of a row, whose fields are in the order of the columns.
using RequestReader = std::function<Result<TraceRequest>(
    const std::vector<std::string_view>& fields, const TracePlace& place)>;

Result<Trace> parse_rows(std::string_view csv, std::string_view name, TraceFormat format,
                         std::initializer_list<std::string_view> columns,
                         const RequestReader& read_request) {
  Trace trace{.format = format};
  const Status read = for_each_row(
      csv, name, columns,
      [&](const std::vector<std::string_view>& fields, const TracePlace& place) -> Status {
        auto request = read_request(fields, place);
        if (!request.ok()) {
          return request.error();
        }
        trace.requests.push_back(*std::move(request));
        return {};
      });
  if (!read.ok()) {
    return read.error();
  }
  leave_out_failed(trace);
  return trace;
}

Result<TraceRequest> azure_request(const std::vector<std::string_view>& fields,
                                   const TracePlace& place) {
  const auto at_ns = parse_timestamp(fields[0]);
  if (!at_ns) {
    return trace_error(place, "{} is not a time like 2023-11-16 18:17:03.97996",
                       quoted_for_error(fields[0]));
  }
  auto request = request_of(fields[1], fields[2], place);
  if (request.ok()) {
    request->at_ns = *at_ns;
  }
  return request;
}

Result<TraceRequest> burstgpt_request(const std::vector<std::string_view>& fields,
                                      const TracePlace& place) {
  const auto at_s = parse_number(fields[0]);
  if (!at_s || *at_s < 0 || *at_s > kMaxTraceSeconds) {
    return trace_error(place, "{} is not a time in seconds", quoted_for_error(fields[0]));
  }
  auto request = request_of(fields[1], fields[2], place);
  if (request.ok()) {
    request->at_ns = seconds_to_ns(*at_s);
  }
  return request;
}

Result<TraceRequest> lengths_request(const std::vector<std::string_view>& fields,
                                     const TracePlace& place) {
  return request_of(fields[0], fields[1], place);
}

}  // namespace

Result<Trace> parse_azure(std::string_view csv, std::string_view name) {
  return parse_rows(csv, name, TraceFormat::kAzure,
                    {"TIMESTAMP", "ContextTokens", "GeneratedTokens"}, azure_request);
}

Result<Trace> parse_burstgpt(std::string_view csv, std::string_view name) {
  return parse_rows(csv, name, TraceFormat::kBurstGpt,
                    {"Timestamp", "Request tokens", "Response tokens"}, burstgpt_request);
}

Result<Trace> parse_lengths(std::string_view csv, std::string_view name) {
  return parse_rows(csv, name, TraceFormat::kLengths, {"num_prefill_tokens", "num_decode_tokens"},
                    lengths_request);
}

}  // namespace protean
