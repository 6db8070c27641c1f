#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <memory>
#include <string>
#include <vector>

#include "apps/memory_map.h"
#include "apps/options.h"
#include "apps/version.h"
#include "base/units.h"
#include "cost/ffn_pages.h"
#include "cost/memory.h"
#include "cost/step_sizes.h"
#include "host/machine.h"
#include "measure/json_line.h"
#include "replica/model_files.h"
#include "replica/model_place.h"
#include "replica/replica.h"
#include "replica/sizing.h"
#include "replica/step_costs.h"
#include "terminal/output.h"

namespace protean {
namespace {

namespace json = boost::json;

std::string rope_text(const RopeSpec& rope) {
  std::string text =
      fmt::format("theta {:g}, {} pairs", rope.theta,
                  rope.pairing == RopePairing::kAdjacent ? "adjacent" : "half-split");
  text += rope.rotated > 0 ? fmt::format(" of {} elements", rope.rotated) : "";
  if (rope.scaling == RopeScaling::kYarn) {
    text += fmt::format(", YaRN by {:g} over {} tokens", rope.factor, rope.original_context);
  } else if (rope.scaling == RopeScaling::kLong) {
    return fmt::format("{}, longrope factors beyond {} tokens", text, rope.original_context);
  } else if (rope.scaling == RopeScaling::kLinear) {
    text += fmt::format(", linear scaling by {:g}", rope.factor);
  } else if (rope.scaling == RopeScaling::kLlama3) {
    text +=
        fmt::format(", llama3 scaling by {:g} over {} tokens", rope.factor, rope.original_context);
  }
  return rope.divisors.empty() ? text : text + ", frequency divisors from the file";
}

std::string attention_text(const ModelSpec& spec) {
  const AttentionSpec& attention = spec.attention;
  std::string text = fmt::format("{} heads of {}, {} KV heads", attention.heads, attention.head_dim,
                                 attention.kv_heads);
  text += attention.qkv_bias ? ", q/k/v bias" : "";
  text += attention.output_bias ? ", output bias" : "";
  text += attention.qk_norm ? ", q/k norm" : "";
  text +=
      attention.score_cap > 0 ? fmt::format(", scores capped at {:g}", attention.score_cap) : "";
  const auto layers_that = [&](const auto& does) {
    int count = 0;
    for (int layer = 0; layer < spec.layers; ++layer) {
      count += does(layer) ? 1 : 0;
    }
    return count;
  };
  if (attention.sliding_window > 0) {
    text += fmt::format(", window of {} tokens in {} layers", attention.sliding_window,
                        layers_that([&](int layer) { return attention.window_of(layer) > 0; }));
  }
  if (const int still = layers_that([&](int layer) { return !attention.rotates(layer); });
      still > 0) {
    text += fmt::format(", no rotation in {} layers", still);
  }
  return text;
}

std::string template_text(const ModelOptions& options, const ModelFiles& files) {
  if (!options.chat_template.empty()) {
    return options.chat_template;
  }
  return files.chat.template_source.empty() ? "none: ChatML stands in" : "the model's own";
}

void print_model(const ModelOptions& options, const ModelFiles& files) {
  const ModelSpec& spec = files.checkpoint->spec();
  print_row("model", "{}", files.name);
  print_row("architecture", "{}: {} layers, hidden {}, FFN {}, vocabulary {}, {} embeddings",
            spec.architecture, spec.layers, spec.hidden, spec.ffn, spec.vocab,
            spec.tied_embeddings ? "tied" : "separate");
  print_row("attention", "{}", attention_text(spec));
  print_row("rope", "{}", rope_text(spec.rope));
  print_row("context", "{} tokens", spec.max_context);
  print_row("files", "{}", files.checkpoint->description());
  print_row("tokenizer", "{}", files.tokenizer->description());
  print_row("chat template", "{}", template_text(options, files));
}

// Returns a text such as "w8: 61.6 MiB a layer" or "w8:8+w4:8: 36.3 MiB to 61.6 MiB a layer".
std::string layers_text(const ModelSpec& spec, const Form& form) {
  std::vector<std::int64_t> bytes;
  for (const LayerPrecision& layer : form.layer_precision) {
    bytes.push_back(layer_bytes(spec, layer));
  }
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  const Precision highest = highest_precision(form);
  if (layers_at(form, highest) == spec.layers) {
    return fmt::format("{}: {} a layer", to_string(highest), format_bytes(*most));
  }
  return fmt::format("{}: {}{} a layer", precision_label(form),
                     *least == *most ? "" : format_bytes(*least) + " to ", format_bytes(*most));
}

void print_sizing(const ModelSpec& spec, const Sizing& sizing) {
  const Precision embeddings = sizing.form.embeddings;
  print_row("weights", "{} in {}, {} for embeddings and output in {}",
            format_bytes(sizing.weight_bytes), layers_text(spec, sizing.form),
            format_bytes(component_bytes(spec, Component::kEmbeddings, embeddings)),
            to_string(embeddings));
  print_row("KV", "{} a token, {} in all for {} tokens",
            format_bytes(kv_token_bytes(spec, sizing.form.kv.precision)),
            format_bytes(sizing.kv_bytes), sizing.form.kv.blocks * sizing.form.kv.block_tokens);
  print_row("max-model-len", "{} tokens", sizing.max_model_len);
  for (int replica = 0; replica < sizing.replicas(); ++replica) {
    if (replica == 0 || !sizing.unequal.empty()) {
      print_row(sizing.unequal.empty() ? "form at start" : fmt::format("replica {}", replica), "{}",
                to_string(sizing_of(sizing, replica).form));
    }
  }
  for (std::size_t device = 0; device < sizing.cpus.size(); ++device) {
    print_row(sizing.cpus.size() == 1 ? "computes with" : fmt::format("device {}", device), "{}",
              to_string(sizing.cpus[device]));
  }
  print_text(memory_map(spec, sizing));
  for (const std::string& warning : sizing.warnings) {
    print_row("warning", "{}", warning);
  }
}

// Prints what steps cost, if a server or `protean profile` has measured it.
void print_steps(const ModelOptions& options, const ModelSpec& spec, const Sizing& sizing) {
  const auto kept = kept_step_cost({.model = options.model, .version = kVersion}, spec,
                                   fingerprint_options({.model = options, .sizing = sizing}));
  if (!kept.ok()) {
    print_row("steps", "not measured yet: a server does that at its first start");
    return;
  }
  const auto ms = [&](const StepSizes& sizes) {
    const StepPlan plan = plan_of(sizes, spec.vocab, sizing.form.kv.block_tokens);
    return predict_us(kept->cost, work_of(plan, spec), sizing.step_precision) / 1000;
  };
  constexpr int kTokens = 256;
  print_row("steps",
            "{:.1f} ms for a prompt of {} tokens, then {:.2f} ms a token; {:.2f} ms for a "
            "token of each of 32 sequences (by {})",
            ms(prefill_sizes(kTokens)), kTokens, ms(decode_sizes(1, kTokens)),
            ms(decode_sizes(32, kTokens)),
            kept->origin == StepCostOrigin::kFingerprint ? "a fingerprint" : "profile --steps");
}

// What inspect says of: a model, or a known model's sizes alone.
struct InspectOptions {
  ModelOptions model;
  std::string like;
  std::string page_size = "2MiB";
  bool pages = false;
  bool json = false;
};

// The tensors of a layer's FFN in pages of a size, as AMOEBA's table 2 has them.
int print_ffn_pages(const InspectOptions& options) {
  const auto model = find_known_model(options.like, false);
  if (!model.ok()) {
    return exit_with(model.error());
  }
  const auto page_bytes = parse_bytes(options.page_size);
  if (!page_bytes.ok() || *page_bytes < 1) {
    return exit_with(make_error(ErrorCode::kInvalidArgument,
                                "--page-size {} must be a size of at least 1 byte, such as 2MiB",
                                options.page_size));
  }
  const std::vector<FfnTensor> tensors = ffn_tensors(*model, *page_bytes);
  if (options.json) {
    json::array rows;
    for (const FfnTensor& tensor : tensors) {
      rows.push_back(json::object{{"name", tensor.name},
                                  {"pages_tp1", tensor.pages_at(1)},
                                  {"pages_tp4", tensor.pages_at(4)},
                                  {"padding", tensor.padding_at(4)}});
    }
    print_text(json_line({{"tensors", std::move(rows)}}));
    return 0;
  }
  print_text(fmt::format("{:8} {:>12} {:>12} {:>12} {:>10}\n", "tensor", "pages TP 1", "TP 2",
                         "TP 4", "padding"));
  for (const FfnTensor& tensor : tensors) {
    print_text(fmt::format("{:8} {:12.3f} {:12.3f} {:12.3f} {:9.2f}%\n", tensor.name,
                           tensor.pages_at(1), tensor.pages_at(2), tensor.pages_at(4),
                           100 * tensor.padding_at(4)));
  }
  return 0;
}

int run_inspect(InspectOptions& inspect) {
  if (!inspect.like.empty()) {
    return print_ffn_pages(inspect);
  }
  ModelOptions& options = inspect.model;
  if (options.model.empty()) {
    return exit_with(make_error(ErrorCode::kInvalidArgument,
                                "protean inspect needs MODEL, or --like NAME --pages"));
  }
  if (Status located = locate_model(options); !located.ok()) {
    return exit_with(located.error());
  }
  const auto files = open_model_files(options);
  if (!files.ok()) {
    return exit_with(files.error());
  }
  const auto sizing = choose_sizing(options, files->checkpoint->spec(), this_machine());
  if (!sizing.ok()) {
    return exit_with(sizing.error());
  }
  print_model(options, *files);
  print_sizing(files->checkpoint->spec(), *sizing);
  if (sizing->form.group.size() == 1) {
    print_steps(options, files->checkpoint->spec(), *sizing);
  }
  return 0;
}

}  // namespace

void add_inspect(CLI::App& root, int& exit_code) {
  CLI::App* app = root.add_subcommand(
      "inspect", "Describe a model, what it needs, and the form that it would start in");
  auto options = std::make_shared<InspectOptions>();
  add_model_options(*app, options->model);
  app->get_option("MODEL")->required(false);
  app->option_defaults()->group("Sizes alone");
  CLI::Option* like =
      app->add_option("--like", options->like, "A published model's sizes, without its weights")
          ->type_name("NAME");
  CLI::Option* pages =
      app->add_flag("--pages", options->pages,
                    "The tensors of a layer's FFN in pages at degrees of tensor "
                    "parallelism, and what it adds if each share begins on a page");
  like->needs(pages);
  pages->needs(like);
  app->add_option("--page-size", options->page_size, "Size of a page")
      ->type_name("SIZE")
      ->capture_default_str()
      ->needs(pages);
  app->add_flag("--json", options->json, "Print one JSON object")->needs(pages);
  app->footer("Example: protean inspect MODEL");
  app->callback([options, &exit_code] { exit_code = run_inspect(*options); });
}

}  // namespace protean
