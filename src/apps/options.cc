#include "apps/options.h"

#include <toml++/toml.h>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <cstdlib>

namespace protean {
namespace {

std::string environment_name(std::string_view flag) {
  std::string name = "PROTEAN_";
  for (const char c : flag) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

bool is_given(const std::vector<std::string>& arguments, const std::string& flag) {
  const auto names = [&](const std::string& argument) {
    return argument == "--" + flag || argument.starts_with("--" + flag + "=") ||
           argument == "--no-" + flag;
  };
  return std::any_of(arguments.begin(), arguments.end(), names) ||
         std::getenv(environment_name(flag).c_str()) != nullptr;
}

// The value after --config, or of PROTEAN_CONFIG; empty if there is none. Takes it off the line.
std::string take_config_path(std::vector<std::string>& arguments) {
  for (auto place = arguments.begin(); place != arguments.end(); ++place) {
    if (place->starts_with("--config=")) {
      std::string path = place->substr(std::string_view("--config=").size());
      arguments.erase(place);
      return path;
    }
    if (*place == "--config" && place + 1 != arguments.end()) {
      std::string path = *(place + 1);
      arguments.erase(place, place + 2);
      return path;
    }
  }
  const char* named = std::getenv("PROTEAN_CONFIG");
  return named != nullptr ? named : "";
}

Status append_value(const std::string& flag, const toml::node& value,
                    std::vector<std::string>& arguments) {
  if (const auto* list = value.as_array()) {
    for (const toml::node& item : *list) {
      if (Status added = append_value(flag, item, arguments); !added.ok()) {
        return added;
      }
    }
  } else if (const auto boolean = value.value_exact<bool>()) {
    arguments.push_back((*boolean ? "--" : "--no-") + flag);
  } else if (const auto text = value.value_exact<std::string>()) {
    arguments.push_back("--" + flag + "=" + *text);
  } else if (const auto integer = value.value_exact<std::int64_t>()) {
    arguments.push_back("--" + flag + "=" + std::to_string(*integer));
  } else if (const auto number = value.value_exact<double>()) {
    arguments.push_back(fmt::format("--{}={}", flag, *number));
  } else {
    return make_error(ErrorCode::kInvalidArgument,
                      "line {}: '{}' must be a string, number, boolean or a list of them",
                      value.source().begin.line, flag);
  }
  return {};
}

bool knows(const CLI::App& app, const std::string& flag) {
  return app.get_option_no_throw("--" + flag) != nullptr;
}

// "serve", "bench serve"
std::string full_name(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  const bool nested = parent != nullptr && parent->get_parent() != nullptr;
  return (nested ? parent->get_name() + " " : "") + app.get_name();
}

// The file may be shared: flags of other subcommands are left to them.
Status append_table(const toml::table& table, const CLI::App& root, const CLI::App& app,
                    std::vector<std::string>& arguments) {
  const std::vector<std::string> given = arguments;
  for (const auto& [key, value] : table) {
    std::string flag(key.str());
    std::replace(flag.begin(), flag.end(), '_', '-');
    const bool elsewhere =
        !root.get_subcommands([&](const CLI::App* other) { return knows(*other, flag); }).empty();
    if (!value.is_table() && !knows(app, flag) && !elsewhere) {
      return make_error(ErrorCode::kInvalidArgument,
                        "line {}: '{}' is no flag of protean {}: see protean {} --help",
                        value.source().begin.line, flag, full_name(app), full_name(app));
    }
    // A switch that is off by default has no --no- form and needs none.
    const bool switched_off = value.value_exact<bool>() == false && !knows(app, "no-" + flag);
    if (value.is_table() || !knows(app, flag) || switched_off || is_given(given, flag)) {
      continue;
    }
    if (Status added = append_value(flag, value, arguments); !added.ok()) {
      return added;
    }
  }
  return {};
}

}  // namespace

void add_model_options(CLI::App& app, ModelOptions& options) {
  app.add_option("model", options.model,
                 "Hugging Face directory (config.json, *.safetensors, tokenizer) or .gguf file")
      ->required();
  app.add_option(
         "--dtype", options.dtype,
         "precision of the layers: bf16, f32, w8, w4, w3 (weights quantised to 8, 4 or 3 "
         "bits as they are loaded), w8a8 or w4a8 (activations to 8 bits too: faster), w8a7 (to "
         "7: faster still where there is no VNNI); auto = what a quantised checkpoint is kept in, "
         "each half of a layer at its own, else bf16")
      ->capture_default_str();
  app.add_option("--max-model-len", options.max_model_len,
                 "longest prompt + answer in tokens; auto = what the checkpoint states, as far as "
                 "KV memory allows")
      ->capture_default_str();
  app.add_option("--kv-cache-dtype", options.kv_cache_dtype,
                 "precision of keys and values: bf16, f32, int8 (half of bf16's memory, with a "
                 "scale for each token and head), or auto = as --dtype")
      ->capture_default_str();
  app.add_option("--kv-cache-memory", options.kv_cache_memory,
                 "memory for keys and values, like 4GiB; auto = what max-num-seqs full contexts "
                 "need, at most half of the free memory")
      ->capture_default_str();
  app.add_option("--device-memory", options.device_memory,
                 "bound of weights, KV and activations together, like 12GiB; auto = what they need")
      ->capture_default_str();
  app.add_option("--max-num-seqs", options.max_num_seqs, "sequences in one step")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--max-num-batched-tokens", options.max_num_batched_tokens,
                 "tokens in one step; longer prompts are computed in chunks")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--block-size", options.block_size, "tokens in a KV block")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", options.prefix_caching,
               "reuse the KV of equal prompt beginnings (default on)");
  app.add_option("--chat-template", options.chat_template,
                 "file with a Jinja chat template to use instead of the model's");
  app.add_option("--special-tokens-in-content", options.special_tokens_in_content,
                 "special tokens written out in a chat's messages, such as <|im_end|>: escape = "
                 "they are plain text, and only the chat template sets special tokens; allow = "
                 "they become special tokens")
      ->check(CLI::IsMember({"escape", "allow"}))
      ->capture_default_str();
  add_compute_options(app, options.compute);
}

void add_compute_options(CLI::App& app, ComputeOptions& options) {
  app.add_option(
      "--cpus", options.cpus,
      "CPUs to compute on, like 0-7,16, in the system's numbers, on which nothing else should run: "
      "each gets a thread that stays there, unless --threads or a container's quota leave fewer; "
      "default: all that this process may use, threads pinned nowhere");
  app.add_option("--threads", options.threads,
                 "0 = one for each of these CPUs, as far as a container's quota goes")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
}

void add_variant_option(CLI::App& app, std::vector<std::string>& texts) {
  app.add_option("--variant", texts,
                 "PRECISION=MODEL: take a precision's weights from another model, such as one "
                 "that protean quantize wrote; may be repeated");
}

CLI::Validator number_range(double least, double most) {
  const auto check_range = [least, most](const std::string& text) {
    double number = 0.0;
    const bool inside =
        CLI::detail::lexical_cast(text, number) && number >= least && number <= most;
    return inside ? std::string()
                  : fmt::format("{} is not a number from {} to {}", text, least, most);
  };
  return {check_range, fmt::format("FLOAT in [{} - {}]", least, most)};
}

void name_environment(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const auto& names = option->get_lnames();
    if (!names.empty() && names.front() != "help") {
      option->envname(environment_name(names.front()));
    }
  }
  app.footer(app.get_footer() +
             "\n\nEvery --flag can also be set as PROTEAN_FLAG in the environment, or in a TOML "
             "file given by --config FILE.");
}

Result<std::vector<std::string>> with_config_file(const CLI::App& root,
                                                  std::vector<std::string> arguments) {
  const std::string path = take_config_path(arguments);
  const auto chosen = root.get_subcommands([&](const CLI::App* app) {
    return !arguments.empty() && app->get_name() == arguments.front();
  });
  if (path.empty() || chosen.empty()) {
    return arguments;
  }
  const auto fail = [&](std::string_view why) {
    return make_error(ErrorCode::kInvalidArgument, "{}: {}", path, why);
  };
  try {
    const toml::table file = toml::parse_file(path);
    // The subcommand's own table first: what it says, the top does not say again.
    const CLI::App& outer = *chosen.front();
    const auto inner = outer.get_subcommands([&](const CLI::App* app) {
      return arguments.size() > 1 && app->get_name() == arguments[1];
    });
    const CLI::App& app = inner.empty() ? outer : *inner.front();
    const toml::table* own = inner.empty() ? file[outer.get_name()].as_table()
                                           : file[outer.get_name()][app.get_name()].as_table();
    Status added = own == nullptr ? Status() : append_table(*own, root, app, arguments);
    if (added.ok()) {
      added = append_table(file, root, app, arguments);
    }
    if (!added.ok()) {
      return fail(added.error().message);
    }
  } catch (const toml::parse_error& error) {
    return fail(fmt::format("line {}: {}", error.source().begin.line, error.description()));
  }
  return arguments;
}

}  // namespace protean
