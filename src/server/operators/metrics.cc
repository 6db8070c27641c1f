#include "server/operators/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "server/operators/group_metrics.h"
#include "server/operators/histogram_buckets.h"
#include "server/operators/mirrored_counter.h"
#include "server/operators/process_stats.h"

namespace protean {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;
using prometheus::Registry;

double seconds(TimeNs ns) {
  return static_cast<double>(std::max<TimeNs>(ns, 0)) / static_cast<double>(kNsPerS);
}

// Makes series that carry the labels of a model and a replica.
class Maker {
 public:
  Maker(Registry& registry, Labels labels) : registry_(registry), labels_(std::move(labels)) {}

  Gauge& gauge(const char* name, const char* help, const Labels& more = {}) const {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add(with(more));
  }
  Counter& counter(const char* name, const char* help, const Labels& more = {}) const {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add(with(more));
  }
  Histogram& histogram(const char* name, const char* help, const HistogramBuckets& buckets) const {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry_).Add(labels_,
                                                                                      buckets);
  }
  const Labels& labels() const { return labels_; }

 private:
  Labels with(const Labels& more) const {
    Labels all = labels_;
    all.insert(more.begin(), more.end());
    return all;
  }

  Registry& registry_;
  const Labels labels_;
};

struct EngineSeries {
  explicit EngineSeries(const Maker& make)
      : running(make.gauge("vllm:num_requests_running", "Requests in execution.")),
        waiting(make.gauge("vllm:num_requests_waiting", "Requests waiting to be executed.")),
        kv_usage(make.gauge("vllm:kv_cache_usage_perc", "KV cache in use; 1 is full.")),
        kv_usage_old(
            make.gauge("vllm:gpu_cache_usage_perc", "KV cache in use; 1 is full. Former name.")),
        kv_blocks(make.gauge("protean:kv_blocks_total", "KV blocks in the present form.")),
        kv_blocks_used(make.gauge("protean:kv_blocks_used", "KV blocks of live requests.")),
        preemptions(make.counter("vllm:num_preemptions_total", "Preemptions.")),
        prefix_queries(make.counter("vllm:prefix_cache_queries_total",
                                    "Prompt tokens looked up in the prefix cache.")),
        prefix_hits(make.counter("vllm:prefix_cache_hits_total",
                                 "Prompt tokens found in the prefix cache.")),
        prefix_queries_old(make.counter("vllm:gpu_prefix_cache_queries_total",
                                        "Prompt tokens looked up. Former name.")),
        prefix_hits_old(
            make.counter("vllm:gpu_prefix_cache_hits_total", "Prompt tokens found. Former name.")),
        prompt_tokens(make.counter("vllm:prompt_tokens_total", "Prompt tokens processed.")),
        output_tokens(make.counter("vllm:generation_tokens_total", "Tokens generated.")),
        steps(make.counter("protean:steps_total", "Forward passes.")),
        routed(make.counter("protean:requests_routed_total",
                            "Requests that the router gave to this replica.")),
        adopted(make.counter("protean:requests_adopted_total", "Requests from other replicas.")),
        adopted_with_kv(make.counter("protean:requests_adopted_with_kv_total",
                                     "Adopted requests whose KV was copied while they decoded.")),
        released(make.counter("protean:requests_released_total",
                              "Requests that went to other replicas.")),
        bubble_share(make.gauge("protean:bubble_share",
                                "Share of the time with a step in flight in which the devices of "
                                "the replica or group idled; 0 for one device.")),
        step_tokens(make.histogram("vllm:iteration_tokens_total", "Tokens per forward pass.",
                                   step_token_buckets())) {}

  Gauge& running;
  Gauge& waiting;
  Gauge& kv_usage;
  Gauge& kv_usage_old;
  Gauge& kv_blocks;
  Gauge& kv_blocks_used;
  MirroredCounter preemptions;
  MirroredCounter prefix_queries;
  MirroredCounter prefix_hits;
  MirroredCounter prefix_queries_old;
  MirroredCounter prefix_hits_old;
  MirroredCounter prompt_tokens;
  MirroredCounter output_tokens;
  MirroredCounter steps;
  MirroredCounter routed;
  MirroredCounter adopted;
  MirroredCounter adopted_with_kv;
  MirroredCounter released;
  Gauge& bubble_share;
  Histogram& step_tokens;
};

struct RequestSeries {
  explicit RequestSeries(const Maker& make)
      : ttft(make.histogram("vllm:time_to_first_token_seconds", "Time to first token.",
                            ttft_buckets())),
        itl(make.histogram("vllm:inter_token_latency_seconds", "Time between tokens.",
                           token_time_buckets())),
        itl_old(make.histogram("vllm:time_per_output_token_seconds",
                               "Time between tokens. Former name.", token_time_buckets())),
        tpot(make.histogram("vllm:request_time_per_output_token_seconds",
                            "Mean time per output token of a request.", token_time_buckets())),
        e2e(make.histogram("vllm:e2e_request_latency_seconds", "Time from request to last token.",
                           request_time_buckets())),
        queue(make.histogram("vllm:request_queue_time_seconds", "Time in the queue.",
                             request_time_buckets())),
        inference(make.histogram("vllm:request_inference_time_seconds", "Time in execution.",
                                 request_time_buckets())),
        prefill(make.histogram("vllm:request_prefill_time_seconds",
                               "Time from start of execution to first token.",
                               request_time_buckets())),
        decode(make.histogram("vllm:request_decode_time_seconds", "Time from first to last token.",
                              request_time_buckets())),
        prompt_tokens(make.histogram("vllm:request_prompt_tokens", "Prompt tokens per request.",
                                     token_count_buckets())),
        output_tokens(make.histogram("vllm:request_generation_tokens",
                                     "Generated tokens per request.", token_count_buckets())),
        max_output(make.histogram("vllm:request_max_num_generation_tokens",
                                  "Limit of generated tokens of a request.",
                                  token_count_buckets())),
        params_max_tokens(make.histogram("vllm:request_params_max_tokens",
                                         "max_tokens per request.", token_count_buckets())),
        params_n(make.histogram("vllm:request_params_n", "n per request.", choice_buckets())) {}

  Histogram& ttft;
  Histogram& itl;
  Histogram& itl_old;
  Histogram& tpot;
  Histogram& e2e;
  Histogram& queue;
  Histogram& inference;
  Histogram& prefill;
  Histogram& decode;
  Histogram& prompt_tokens;
  Histogram& output_tokens;
  Histogram& max_output;
  Histogram& params_max_tokens;
  Histogram& params_n;
};

// The form and the morphs that changed it.
struct FormSeries {
  FormSeries(const Maker& maker, Registry& registry, const std::string& program)
      : make(maker),
        version(program),
        info(prometheus::BuildGauge()
                 .Name("protean:form_info")
                 .Help("The replica's form.")
                 .Register(registry)),
        pages(make.gauge("protean:pages_total", "Pages of device memory.")),
        pages_free(make.gauge("protean:pages_free", "Pages that neither weights nor KV use.")),
        page_bytes(make.gauge("protean:page_bytes", "Bytes of a page.")),
        pinned(make.gauge("protean:form_pinned", "1 if an operator chose the form.")),
        swaps_down(swaps("down")),
        swaps_up(swaps("up")),
        kv_resizes(make.counter("protean:kv_resizes_total", "Changes of the KV cache's size.")),
        blocks_moved(make.counter("protean:kv_blocks_moved_total",
                                  "KV blocks moved to shrink the KV cache.")),
        failures(make.counter("protean:morph_failures_total", "Steps of morphs that failed.")),
        remarks(make.counter("protean:morph_remarks_total",
                             "Steps of morphs that succeeded with a remark, such as weights "
                             "missing from the variant cache.")) {}

  Counter& swaps(const char* direction) const {
    return make.counter(
        "protean:precision_swaps_total",
        "Changes of precision of layer halves and of the embedding matrix with the LM head.",
        {{"direction", direction}});
  }

  void forget_info() {
    if (info_now != nullptr) {
      info.Remove(info_now);
    }
    info_now = nullptr;
    text.clear();
  }

  const Maker& make;
  const std::string version;
  prometheus::Family<Gauge>& info;
  Gauge* info_now = nullptr;
  std::string text;
  int block_tokens = 0;
  Gauge& pages;
  Gauge& pages_free;
  Gauge& page_bytes;
  Gauge& pinned;
  MirroredCounter swaps_down;
  MirroredCounter swaps_up;
  MirroredCounter kv_resizes;
  MirroredCounter blocks_moved;
  MirroredCounter failures;
  MirroredCounter remarks;
  std::map<std::string, MirroredCounter> tokens;  // by precision
};

constexpr std::array kReasons{"stop", "length", "abort", "error"};

// What one replica shows.
struct ReplicaSeries {
  ReplicaSeries(Registry& registry, const MetricsLabels& labels, std::size_t replica)
      : make(registry, {{"model_name", labels.model_name}, {"engine", std::to_string(replica)}}),
        engine(make),
        request(make),
        cache_config(prometheus::BuildGauge()
                         .Name("vllm:cache_config_info")
                         .Help("The KV cache's configuration.")
                         .Register(registry)),
        form(make, registry, labels.version) {
    for (const char* reason : kReasons) {
      make.counter("vllm:request_success_total", "Requests that ended, by reason.",
                   {{"finished_reason", reason}});
    }
    make.gauge("vllm:lora_requests_info", "LoRA adapters in use; always none.",
               {{"max_lora", "0"}, {"running_lora_adapters", ""}, {"waiting_lora_adapters", ""}})
        .Set(0);
    // Gateways read these from every server; here they are always 0.
    make.gauge("vllm:num_requests_swapped", "Requests swapped out; always 0.");
    make.gauge("vllm:cpu_cache_usage_perc", "Swap space in use; always 0.");
    make.counter("vllm:external_prefix_cache_queries_total",
                 "Prompt tokens looked up in another server's cache; always 0.");
    make.counter("vllm:external_prefix_cache_hits_total",
                 "Prompt tokens found in another server's cache; always 0.");
    make.gauge("protean:build_info", "The program.", {{"version", labels.version}}).Set(1);
  }

  // Gateways read the number of blocks from a label, so a resize replaces the series.
  void show_cache_config(std::int64_t blocks) {
    if (blocks == kv_blocks) {
      return;
    }
    kv_blocks = blocks;
    if (cache_config_now != nullptr) {
      cache_config.Remove(cache_config_now);
    }
    Labels labels = make.labels();
    labels["block_size"] = std::to_string(form.block_tokens);
    labels["num_gpu_blocks"] = std::to_string(kv_blocks);
    cache_config_now = &cache_config.Add(labels);
    cache_config_now->Set(1);
  }

  const Maker make;
  EngineSeries engine;
  RequestSeries request;
  prometheus::Family<Gauge>& cache_config;
  Gauge* cache_config_now = nullptr;
  FormSeries form;
  std::int64_t kv_blocks = -1;
};

}  // namespace

struct Metrics::Series {
  Series(const MetricsLabels& labels, int count) : groups(registry, labels.model_name) {
    for (int replica = 0; replica < count; ++replica) {
      replicas.push_back(
          std::make_unique<ReplicaSeries>(registry, labels, static_cast<std::size_t>(replica)));
    }
  }
  ReplicaSeries& of(ReplicaId replica) {
    return *replicas.at(static_cast<std::size_t>(replica.value));
  }

  Registry registry;
  GroupMetrics groups;
  std::vector<std::unique_ptr<ReplicaSeries>> replicas;
};

Metrics::Metrics(const MetricsLabels& labels, int replicas)
    : series_(std::make_unique<Series>(labels, replicas)) {
  residence(Residence::kAwake);
  moves(0);
}
Metrics::~Metrics() = default;

void Metrics::groups(const GroupsStatus& status) {
  series_->groups.show(status);
}

void Metrics::replicas_wanted(const ReplicasWanted& wanted) {
  series_->groups.show(wanted);
}

// A model that sleeps keeps nothing in memory, which vLLM calls discard_all.
void Metrics::residence(Residence residence) {
  const bool awake = residence == Residence::kAwake;
  for (const std::unique_ptr<ReplicaSeries>& replica : series_->replicas) {
    for (const auto& [state, now] : {std::pair("awake", awake), {"discard_all", !awake}}) {
      replica->make
          .gauge("vllm:engine_sleep_state", "1 for the state the engine is in.",
                 {{"sleep_state", state}})
          .Set(now ? 1 : 0);
    }
  }
}

void Metrics::moves(int total) {
  Counter& counter = series_->replicas.front()->make.counter(
      "protean:model_moves_total", "Moves of the model that no operator asked for.");
  counter.Increment(total - counter.Value());
}

void Metrics::time_share(const TimeShare& share) {
  series_->groups.show(share);
}

void Metrics::engine(ReplicaId replica, const Observation& seen) {
  ReplicaSeries& shown = series_->of(replica);
  shown.show_cache_config(seen.kv_blocks);
  EngineSeries& series = shown.engine;
  series.running.Set(seen.running);
  series.waiting.Set(seen.waiting);
  const double usage = seen.kv_blocks > 0 ? static_cast<double>(seen.kv_blocks_used) /
                                                static_cast<double>(seen.kv_blocks)
                                          : 0.0;
  series.kv_usage.Set(usage);
  series.kv_usage_old.Set(usage);
  series.kv_blocks.Set(static_cast<double>(seen.kv_blocks));
  series.kv_blocks_used.Set(static_cast<double>(seen.kv_blocks_used));
  series.preemptions.set(seen.preemptions_total);
  series.prefix_queries.set(seen.prefix_query_tokens_total);
  series.prefix_hits.set(seen.prefix_hit_tokens_total);
  series.prefix_queries_old.set(seen.prefix_query_tokens_total);
  series.prefix_hits_old.set(seen.prefix_hit_tokens_total);
  series.prompt_tokens.set(seen.prompt_tokens_total);
  series.output_tokens.set(seen.output_tokens_total);
  series.steps.set(seen.steps_total);
  series.routed.set(seen.accepted_total);
  series.adopted.set(seen.adopted_total);
  series.adopted_with_kv.set(seen.adopted_with_kv_total);
  series.released.set(seen.released_total);
  series.bubble_share.Set(seen.devices.bubble_share());
  if (seen.step_tokens > 0) {
    series.step_tokens.Observe(seen.step_tokens);
  }
}

namespace {

Gauge& layers_gauge(const Maker& make, Precision precision) {
  return make.gauge("protean:layers", "Layers of the form, by precision; halves count 0.5.",
                    {{"precision", std::string(to_string(precision))}});
}

}  // namespace

void Metrics::form(ReplicaId replica, const FormStatus& status) {
  const Maker& make = series_->of(replica).make;
  FormSeries& series = series_->of(replica).form;
  series.block_tokens = status.form.kv.block_tokens;
  if (std::string text = to_string(status.form); text != series.text) {
    series.forget_info();
    Labels labels = make.labels();
    labels["form"] = text;
    labels["version"] = series.version;
    series.info_now = &series.info.Add(labels);
    series.info_now->Set(1);
    series.text = std::move(text);
    for (const Precision precision : kPrecisions) {  // 0 included, so that a graph falls to it
      layers_gauge(make, precision).Set(layers_at(status.form, precision));
    }
  }
  series.pages.Set(static_cast<double>(status.pages.all));
  series.pages_free.Set(static_cast<double>(status.pages.free));
  series.page_bytes.Set(static_cast<double>(status.pages.page_bytes));
  series.pinned.Set(status.pinned ? 1 : 0);
  series.swaps_down.set(status.swaps_down_total);
  series.swaps_up.set(status.swaps_up_total);
  series.kv_resizes.set(status.kv_resizes_total);
  series.blocks_moved.set(status.blocks_moved_total);
  series.failures.set(status.failures_total);
  series.remarks.set(status.remarks_total);
  for (const TokensAt& at : status.output_tokens) {
    const auto found = series.tokens.find(at.precision);
    MirroredCounter& tokens =
        found != series.tokens.end()
            ? found->second
            : series.tokens
                  .emplace(at.precision,
                           make.counter("protean:generation_tokens_by_precision_total",
                                        "Tokens generated, by the precision of layers.",
                                        {{"precision", at.precision}}))
                  .first->second;
    tokens.set(at.tokens);
  }
}

void Metrics::has_no_form(ReplicaId replica) {
  FormSeries& series = series_->of(replica).form;
  series.forget_info();
  series.pinned.Set(0);
  for (const Precision precision : kPrecisions) {
    layers_gauge(series.make, precision).Set(0);
  }
}

void Metrics::first_token(ReplicaId replica, TimeNs waited_ns) {
  series_->of(replica).request.ttft.Observe(seconds(waited_ns));
}

void Metrics::next_token(ReplicaId replica, TimeNs waited_ns) {
  RequestSeries& series = series_->of(replica).request;
  series.itl.Observe(seconds(waited_ns));
  series.itl_old.Observe(seconds(waited_ns));
}

void Metrics::finished(ReplicaId replica, const EndedRequest& record) {
  RequestSeries& series = series_->of(replica).request;
  const RequestTimes& times = record.times;
  series_->of(replica)
      .make
      .counter("vllm:request_success_total", "Requests that ended, by reason.",
               {{"finished_reason", std::string(record.reason)}})
      .Increment();
  series.e2e.Observe(seconds(times.finished_ns - record.received_ns));
  series.prompt_tokens.Observe(record.usage.prompt_tokens);
  series.output_tokens.Observe(record.usage.output_tokens);
  series.max_output.Observe(record.max_tokens);
  series.params_max_tokens.Observe(record.max_tokens);
  series.params_n.Observe(1);
  if (times.scheduled_ns > 0) {
    series.queue.Observe(seconds(times.scheduled_ns - times.arrived_ns));
    series.inference.Observe(seconds(times.finished_ns - times.scheduled_ns));
  }
  if (times.first_token_ns > 0) {
    const double decode_s = seconds(times.finished_ns - times.first_token_ns);
    series.prefill.Observe(seconds(times.first_token_ns - times.scheduled_ns));
    series.decode.Observe(decode_s);
    if (record.usage.output_tokens > 1) {
      series.tpot.Observe(decode_s / (record.usage.output_tokens - 1));
    }
  }
}

std::string exposition(const std::vector<const Metrics*>& models) {
  std::vector<prometheus::MetricFamily> families;
  std::map<std::string, std::size_t> places;
  for (const Metrics* model : models) {
    for (prometheus::MetricFamily& family : model->series_->registry.Collect()) {
      const auto [place, is_new] = places.emplace(family.name, families.size());
      if (is_new) {
        families.push_back(std::move(family));
      } else {
        auto& samples = families[place->second].metric;
        std::move(family.metric.begin(), family.metric.end(), std::back_inserter(samples));
      }
    }
  }
  return prometheus::TextSerializer().Serialize(families) + process_metrics();
}

}  // namespace protean
