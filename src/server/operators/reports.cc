#include "server/operators/reports.h"

namespace protean {

Status Reports::start(const Setting& setting) {
  if (!setting.otlp_endpoint.empty()) {
    const auto endpoint = parse_otlp_endpoint(setting.otlp_endpoint);
    if (!endpoint.ok()) {
      return endpoint.error();
    }
    tracer_ = std::make_unique<Tracer>(Tracer::Setting{.endpoint = *endpoint,
                                                       .version = setting.version,
                                                       .unix_offset_ns = setting.unix_offset_ns,
                                                       .random = setting.random});
  }
  if (!setting.scaler_url.empty()) {
    if (Status usable = ScalerHook::check_url(setting.scaler_url); !usable.ok()) {
      return usable;
    }
    scaler_ = std::make_unique<ScalerHook>(ScalerHook::Setting{.url = setting.scaler_url});
  }
  return {};
}

void Reports::answered(const AnswerRecord& record) {
  if (tracer_ != nullptr) {
    tracer_->add(record);
  }
}

void Reports::replicas_wanted(const std::string& model, const ReplicasWanted& wanted,
                              std::int64_t unix_time_s) {
  if (scaler_ != nullptr) {
    scaler_->tell(model, wanted, unix_time_s);
  }
}

}  // namespace protean
