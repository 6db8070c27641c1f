#include <algorithm>
#include <boost/json/object.hpp>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/measured_quality.h"
#include "apps/options.h"
#include "base/log.h"
#include "measure/documents.h"
#include "measure/json_line.h"
#include "measure/schedule_score.h"
#include "measure/text_score.h"
#include "replica/local_client.h"
#include "terminal/output.h"
#include "terminal/progress.h"

namespace protean {
namespace {

namespace json = boost::json;

constexpr int kDefaultContext = 1024;

struct EvalOptions {
  ModelOptions model;
  std::string text;
  std::string split;
  int context = 0;
  int stride = 0;
  std::string against;
  std::string variant_cache;
  std::string prompts;
  std::vector<std::string> schedules;
  bool as_json = false;
};

std::string percent_name(double percent) {
  return percent == 100.0 ? "max" : percent == 0.0 ? "min" : fmt::format("{:g} %", percent);
}

void print_score(const TextScore& score) {
  const Likelihood& likelihood = score.likelihood;
  print_row("tokens", "{} of {} bytes", likelihood.tokens(), likelihood.bytes());
  print_row("perplexity", "{:.4f}", likelihood.perplexity());
  print_row("nats per token", "{:.4f} +- {:.4f}", likelihood.nats_per_token(),
            likelihood.nats_standard_error());
  print_row("bits per byte", "{:.4f}", likelihood.bits_per_byte());
  if (!score.divergence) {
    return;
  }
  const Divergence& divergence = *score.divergence;
  print_row("reference perplexity", "{:.4f}", score.reference->perplexity());
  print_row("ln(perplexity ratio)", "{:.6f}", divergence.log_perplexity_ratio());
  print_row("same top token", "{:.3f} %", 100.0 * divergence.top1_agreement());
  print_row("KL divergence, mean", "{:.6f} +- {:.6f}", divergence.kl_mean(),
            divergence.kl_standard_error());
  for (const double percent : kKlPercentiles) {
    print_row("  " + percent_name(percent), "{:.6f}", divergence.kl_percentile(percent));
  }
  print_row("delta p, mean", "{:.4f} % (RMS {:.4f} %)", 100.0 * divergence.delta_p_mean(),
            100.0 * divergence.delta_p_rms());
  for (const double percent : kDeltaPercentiles) {
    print_row("  " + percent_name(percent), "{:.4f} %",
              100.0 * divergence.delta_p_percentile(percent));
  }
}

json::object score_json(const TextScore& score) {
  const Likelihood& likelihood = score.likelihood;
  json::object object{{"perplexity", likelihood.perplexity()},
                      {"nats_per_token", likelihood.nats_per_token()},
                      {"nats_per_token_stderr", likelihood.nats_standard_error()},
                      {"bits_per_byte", likelihood.bits_per_byte()},
                      {"tokens", likelihood.tokens()},
                      {"bytes", likelihood.bytes()}};
  if (!score.divergence) {
    return object;
  }
  const Divergence& divergence = *score.divergence;
  json::object kl;
  for (const double percent : kKlPercentiles) {
    kl[fmt::format("{:g}", percent)] = divergence.kl_percentile(percent);
  }
  json::object delta;
  for (const double percent : kDeltaPercentiles) {
    delta[fmt::format("{:g}", percent)] = divergence.delta_p_percentile(percent);
  }
  object["reference_perplexity"] = score.reference->perplexity();
  object["log_perplexity_ratio"] = divergence.log_perplexity_ratio();
  object["kl_mean"] = divergence.kl_mean();
  object["kl_stderr"] = divergence.kl_standard_error();
  object["kl_percentiles"] = std::move(kl);
  object["top1_agreement"] = divergence.top1_agreement();
  object["delta_p_mean"] = divergence.delta_p_mean();
  object["delta_p_rms"] = divergence.delta_p_rms();
  object["delta_p_percentiles"] = std::move(delta);
  return object;
}

Result<ScoringOptions> scoring_options(const EvalOptions& options, int max_model_len) {
  const int context =
      options.context > 0 ? options.context : std::min(kDefaultContext, max_model_len);
  const int stride = options.stride > 0 ? options.stride : std::max(1, context / 2);
  if (context < 2 || context > max_model_len) {
    return make_error(ErrorCode::kInvalidArgument, "--context {}: this model reads 2 to {} tokens",
                      context, max_model_len);
  }
  if (stride >= context) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--stride {} must be less than the context of {}, so that every token scored "
                      "has one before it",
                      stride, context);
  }
  return ScoringOptions{context, stride};
}

// Returns what --against names: another precision of the same model, or another model.
ModelOptions reference_options(const EvalOptions& options) {
  ModelOptions reference = options.model;
  reference.kv_cache_dtype = "auto";  // the reference keeps full precision unless asked
  if (parse_precision(options.against).ok() && !std::filesystem::exists(options.against)) {
    reference.dtype = options.against;
  } else {
    reference.model = options.against;
  }
  return reference;
}

Status same_vocabulary(const LocalClient& model, const LocalClient& reference) {
  const Tokenizer& ours = *model.files().tokenizer;
  const Tokenizer& theirs = *reference.files().tokenizer;
  bool same = ours.vocab_size() == theirs.vocab_size() &&
              model.files().checkpoint->spec().vocab == reference.files().checkpoint->spec().vocab;
  for (TokenId id = 0; same && id < ours.vocab_size(); ++id) {
    same = ours.token_text(id) == theirs.token_text(id);
  }
  if (!same) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} and {} have different vocabularies, so their predictions cannot be "
                      "compared token by token",
                      model.files().name, reference.files().name);
  }
  return {};
}

MeasuredForm measured_form(const LocalClient& client) {
  return {client.path(), client.files().checkpoint->spec(), client.form()};
}

Result<TextScore> evaluate_text(const EvalOptions& options) {
  auto model = LocalClient::open(options.model);
  if (!model.ok()) {
    return model.error();
  }
  std::unique_ptr<LocalClient> reference;
  int max_model_len = (*model)->max_model_len();
  if (!options.against.empty()) {
    auto opened = LocalClient::open(reference_options(options));
    if (!opened.ok()) {
      return opened.error();
    }
    reference = *std::move(opened);
    if (Status same = same_vocabulary(**model, *reference); !same.ok()) {
      return same.error();
    }
    max_model_len = std::min(max_model_len, reference->max_model_len());
  }
  const auto scoring = scoring_options(options, max_model_len);
  if (!scoring.ok()) {
    return scoring.error();
  }
  const auto documents = read_documents(options.text, options.split, *(*model)->files().tokenizer);
  if (!documents.ok()) {
    return documents.error();
  }
  auto score =
      score_text(**model, reference.get(), *documents, *scoring, count_bar("scoring", "tokens"));
  if (score.ok() && score->divergence && score->likelihood.tokens() > 0) {
    const Status kept =
        keep_quality(measured_form(**model), measured_form(*reference),
                     std::exp(score->divergence->log_perplexity_ratio()), options.variant_cache);
    if (!kept.ok()) {
      log::warning("the perplexity is not kept for plans: {}", kept.error().message);
    }
  }
  return score;
}

// Parses the schedules. The first result is the baseline, as long and all at full precision.
Result<std::vector<PrecisionSchedule>> read_schedules(const EvalOptions& options) {
  std::vector<PrecisionSchedule> schedules;
  for (const std::string& text : options.schedules) {
    auto schedule = parse_schedule(text);
    if (!schedule.ok()) {
      return schedule.error();
    }
    if (schedules.empty()) {
      int tokens = 0;
      for (const PrecisionSpan& span : *schedule) {
        tokens += span.tokens;
      }
      const auto full = parse_precision(options.model.dtype);
      schedules.push_back({{full.ok() ? *full : Precision::kBf16, tokens}});
    }
    schedules.push_back(*std::move(schedule));
  }
  return schedules;
}

Result<std::vector<ScheduleScore>> evaluate_generation(
    const EvalOptions& options, const std::vector<PrecisionSchedule>& schedules) {
  const auto prompts = read_prompts(options.prompts);
  if (!prompts.ok()) {
    return prompts.error();
  }
  std::map<Precision, std::unique_ptr<LocalClient>> clients;
  const auto client_at = [&](Precision precision) -> Result<LocalClient*> {
    std::unique_ptr<LocalClient>& client = clients[precision];
    if (client == nullptr) {
      ModelOptions model = options.model;
      model.dtype = to_string(precision);
      auto opened = LocalClient::open(model);
      if (!opened.ok()) {
        return opened.error();
      }
      client = *std::move(opened);
    }
    return client.get();
  };
  return score_schedules(client_at, *prompts, schedules, count_bar("continuing", "schedules"));
}

void print_schedules(const std::vector<ScheduleScore>& scores) {
  print_text(fmt::format("{:<36}{:>8}{:>12}{:>10}{:>12}{:>10}\n", "schedule", "tokens", "ROUGE-L",
                         "F1", "ROUGE-L", "F1"));
  print_text(fmt::format("{:<44}{:>22}{:>22}\n", "", "to baseline", "to the truth"));
  for (const ScheduleScore& score : scores) {
    std::string line =
        fmt::format("{:<36}{:>8}{:>12.4f}{:>10.4f}", score.schedule, score.output_tokens,
                    score.rouge_l_baseline, score.token_f1_baseline);
    if (score.references > 0) {
      line += fmt::format("{:>12.4f}{:>10.4f}", score.rouge_l_truth, score.token_f1_truth);
    }
    print_text(line + "\n");
  }
}

json::array schedules_json(const std::vector<ScheduleScore>& scores) {
  json::array array;
  for (const ScheduleScore& score : scores) {
    json::object object{{"schedule", score.schedule},
                        {"output_tokens", score.output_tokens},
                        {"rouge_l_baseline", score.rouge_l_baseline},
                        {"token_f1_baseline", score.token_f1_baseline}};
    if (score.references > 0) {
      object["rouge_l_truth"] = score.rouge_l_truth;
      object["token_f1_truth"] = score.token_f1_truth;
    }
    array.push_back(std::move(object));
  }
  return array;
}

int run_eval(const EvalOptions& options) {
  if (options.text.empty() && options.prompts.empty()) {
    return exit_with({ErrorCode::kInvalidArgument,
                      "there is nothing to evaluate: give --text FILE, --generate FILE or both"});
  }
  const auto schedules = read_schedules(options);
  if (!schedules.ok()) {
    return exit_with(schedules.error());
  }
  json::object report;
  if (!options.text.empty()) {
    const auto score = evaluate_text(options);
    if (!score.ok()) {
      return exit_with(score.error());
    }
    report = score_json(*score);
    if (!options.as_json) {
      print_score(*score);
    }
  }
  if (!options.prompts.empty()) {
    const auto scores = evaluate_generation(options, *schedules);
    if (!scores.ok()) {
      return exit_with(scores.error());
    }
    report["schedules"] = schedules_json(*scores);
    if (!options.as_json) {
      print_schedules(*scores);
    }
  }
  if (options.as_json) {
    print_text(json_line(std::move(report)));
  }
  return 0;
}

}  // namespace

void add_eval(CLI::App& root, int& exit_code) {
  CLI::App* app = root.add_subcommand(
      "eval", "Measure how well a model predicts a text, or what a lower precision costs");
  auto options = std::make_shared<EvalOptions>();
  options->schedules = {"bf16:128"};
  app->option_defaults()->group("Scoring");
  app->add_option("--text", options->text,
                  "Text to score by perplexity, nats per token and bits per byte. A .jsonl file "
                  "holds one document a line, in \"text\"")
      ->type_name("FILE")
      ->check(existing_path());
  app->add_option("--split", options->split,
                  "Text that separates documents in the file; without it the file is one document")
      ->type_name("TEXT");
  app->add_option("--context", options->context,
                  "Tokens that the model reads at once (default the model's, at most 1024)")
      ->check(whole_number(1, kMostTokens));
  app->add_option("--stride", options->stride,
                  "Tokens scored in each window of --context tokens; the rest of the window is "
                  "context only (default half of --context)")
      ->check(whole_number(1, kMostTokens));
  app->add_option("--against", options->against,
                  "Compare each prediction with those of another model, or of another precision of "
                  "this one")
      ->type_name("MODEL|PRECISION");
  add_variant_cache_option(*app, options->variant_cache);
  app->option_defaults()->group("Generation");
  app->add_option("--generate", options->prompts,
                  "Prompts to continue greedily, one a line, or a .jsonl file with \"prompt\" and "
                  "\"reference\"")
      ->type_name("FILE")
      ->check(existing_path());
  app->add_option("--schedule", options->schedules,
                  "Precisions of a continuation and for how many tokens each, such as "
                  "bf16:512,w4:1024,bf16:512. May be repeated")
      ->type_name("SCHEDULE")
      ->allow_extra_args(false)
      ->capture_default_str();
  app->option_defaults()->group("Output");
  app->add_flag("--json", options->as_json, "Print one JSON object");
  add_model_options(*app, options->model);
  app->footer(
      "Example: protean eval MODEL --text book.txt --context 512\n"
      "What a lower precision costs: protean eval MODEL --dtype w4 --text book.txt --against bf16");
  app->callback([options, &exit_code] { exit_code = run_eval(*options); });
}

}  // namespace protean
