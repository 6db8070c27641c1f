#include "apps/intent_options.h"

#include "apps/options.h"

namespace protean {

void add_intent_options(CLI::App& app, IntentOptions& options) {
  app.option_defaults()->group("Intent");
  app.add_option("--intent", options.intent,
                 "Choose precisions and parallelism for min-latency, min-cost, min-memory, "
                 "min-device-hours, latency-slo=500ms (the cheapest that keeps it) or "
                 "cost-slo=0.02 (the fastest within it), on up to --devices devices")
      ->type_name("INTENT")
      ->capture_default_str();
  app.add_option("--cost", options.formula,
                 "What costs, summed over devices: memory-time (price of a device-hour * share of "
                 "its memory * time of an answer), memory (price * share, for an hour) or "
                 "device-time (price * time of an answer)")
      ->type_name("FORMULA")
      ->capture_default_str();
  app.add_option("--price", options.price,
                 "Price of a device-hour; protean plan's file of --devices may give more or less")
      ->check(number_range(0, 1e9))
      ->capture_default_str();
  app.add_option("--batch", options.load.batch, "Requests at once that estimates are for")
      ->check(whole_number(1, kMostPlannedBatch))
      ->capture_default_str();
  app.add_option("--prompt-tokens", options.load.prompt_tokens,
                 "Tokens of each prompt that estimates are for")
      ->check(whole_number(1, kMostTokens))
      ->capture_default_str();
  app.add_option("--output-tokens", options.load.output_tokens,
                 "Tokens of each answer that estimates are for")
      ->check(whole_number(1, kMostTokens))
      ->capture_default_str();
  app.add_option("--placement", options.placement,
                 "Which devices with room to take: least-loaded, packing, or hybrid (the most "
                 "loaded ones below --theta, otherwise the least loaded)")
      ->type_name("POLICY")
      ->capture_default_str();
  app.add_option("--theta", options.theta, "Load above which hybrid packs nothing on a device")
      ->check(number_range(0, 1))
      ->capture_default_str();
}

}  // namespace protean
