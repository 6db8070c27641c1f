#include "control/form_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "base/units.h"
#include "control/plan_morph.h"
#include "cost/memory.h"

namespace protean {
namespace {

// Returns the mean bits of a weight of the layers.
double mean_bits(const ModelSpec& spec, const Form& form) {
  double weights = 0;
  double bits = 0;
  for (const Component half : kLayerHalves) {
    const auto size = static_cast<double>(component_bytes(spec, half, Precision::kBf16));
    for (const LayerPrecision& layer : form.layer_precision) {
      weights += size;
      bits += size * weight_bits(layer.of(half));
    }
  }
  return bits / weights;
}

int lowered_layers(const Form& full, const Form& form) {
  int lowered = 0;
  for (std::size_t i = 0; i < full.layer_precision.size(); ++i) {
    lowered += full.layer_precision[i] == form.layer_precision[i] ? 0 : 1;
  }
  return lowered;
}

// Returns forms after `form`, each with one more target at `precision`.
std::vector<Form> rung_forms(const FormBounds& bounds, Form form, std::span<const SwapTarget> order,
                             Precision precision) {
  std::vector<Form> forms;
  for (const SwapTarget& target : order) {
    Form lower = form;
    for (const Component half : halves_of(target)) {
      Precision& now = precision_of(lower, target.layer, half);
      now = is_below(precision, now) ? precision : now;
    }
    if (!equally_precise(lower, form) && above_floor(bounds, lower)) {
      form = lower;
      forms.push_back(std::move(lower));
    }
  }
  return forms;
}

// Lowers the embeddings with the last of a rung's targets, if no layer is above the rung then. The
// embeddings are one piece that is too large for KV to lend: pages for their new variant come from
// what layers free, so targets whose pages are kept for it are lowered with the last one too. Does
// nothing if that were more than half of what the rung frees: KV would come too late.
void lower_embeddings(const FormBounds& bounds, Precision rung, const Form& before,
                      std::vector<Form>& forms) {
  const Precision embeddings = default_embeddings_precision(rung);
  if (bounds.embeddings_stay || forms.empty() ||
      weight_bits(embeddings) >= weight_bits(forms.back().embeddings) ||
      weight_bits(highest_precision(forms.back())) > weight_bits(rung)) {
    return;
  }
  const auto pages_of = [&](const Form& form) {
    return weight_pages(bounds.spec, form, bounds.budget.page_bytes);
  };
  Form last = forms.back();
  const std::int64_t in_addition =
      pages_to_prepare(bounds.spec, last, SwapComponent{0, Component::kEmbeddings, embeddings},
                       bounds.budget.page_bytes);
  const std::int64_t most = pages_of(last) + in_addition;
  if (2 * in_addition > pages_of(before) - pages_of(last)) {
    return;
  }
  std::erase_if(forms, [&](const Form& form) { return pages_of(form) < most; });
  last.embeddings = embeddings;
  forms.push_back(std::move(last));
}

// Returns the form of quiet times with lower embeddings. Nothing: they stay, or KV lacks the pages
// for the new variant.
std::optional<Form> with_lower_embeddings(const FormBounds& bounds, const Form& quiet) {
  Form lower = quiet;
  lower.embeddings = default_embeddings_precision(bounds.ladder[1]);
  if (bounds.embeddings_stay || weight_bits(lower.embeddings) >= weight_bits(quiet.embeddings)) {
    return std::nullopt;
  }
  lower = with_fitting_kv(bounds, std::move(lower));
  return plan_morph(quiet, lower, bounds).ok() ? std::optional(lower) : std::nullopt;
}

Error out_of_bounds(std::string_view what) {
  return make_error(ErrorCode::kInvalidArgument, "forms cannot be bounded so: {}", what);
}

}  // namespace

bool above_floor(const FormBounds& bounds, const Form& form) {
  constexpr double kRounding = 1e-9;
  const QualityFloor& floor = bounds.floor;
  return mean_bits(bounds.spec, form) >= floor.least_mean_bits - kRounding &&
         (floor.most_lowered_layers < 0 ||
          lowered_layers(bounds.full, form) <= floor.most_lowered_layers);
}

bool is_below(Precision rung, Precision now) {
  return weight_bits(rung) < weight_bits(now) || (weight_only(rung) == now && rung != now);
}

std::int64_t kv_blocks_that_fit(const FormBounds& bounds, const Form& form) {
  const PageBudget& budget = bounds.budget;
  const std::int64_t blocks = protean::kv_blocks_that_fit(
      bounds.spec, form, budget.pages - budget.reserve, budget.page_bytes);
  return bounds.most_kv_blocks > 0 ? std::min(blocks, bounds.most_kv_blocks) : blocks;
}

Form with_fitting_kv(const FormBounds& bounds, Form form) {
  form.kv.blocks = kv_blocks_that_fit(bounds, form);
  return form;
}

std::vector<SwapTarget> order_of(const FormBounds& bounds) {
  return bounds.order.empty() ? swap_targets(bounds.spec.layers, false) : bounds.order;
}

Status validate(const FormBounds& bounds) {
  const auto layers = static_cast<int>(bounds.full.layer_precision.size());
  if (layers == 0 || layers != bounds.spec.layers) {
    return out_of_bounds(fmt::format("the form of quiet times has {} layers, the model {}", layers,
                                     bounds.spec.layers));
  }
  const std::vector<SwapTarget> order = order_of(bounds);
  const std::vector<SwapTarget> all = swap_targets(layers, order.front().half.has_value());
  if (order.size() != all.size() || !std::is_permutation(all.begin(), all.end(), order.begin())) {
    return out_of_bounds(
        fmt::format("the order has to name each of the layers 0 to {} once, or each of their "
                    "halves",
                    layers - 1));
  }
  if (bounds.ladder.empty()) {
    return out_of_bounds("no precision is allowed");
  }
  for (std::size_t i = 1; i < bounds.ladder.size(); ++i) {
    if (weight_bits(bounds.ladder[i]) >= weight_bits(bounds.ladder[i - 1])) {
      return out_of_bounds(fmt::format("{} comes after {}, but has no fewer bits",
                                       to_string(bounds.ladder[i]),
                                       to_string(bounds.ladder[i - 1])));
    }
  }
  const Precision first = bounds.ladder.front();
  for (const LayerPrecision& layer : bounds.full.layer_precision) {
    const auto too_high = [&](Precision half) { return half != first && !is_below(half, first); };
    if (too_high(layer.attention) || too_high(layer.mlp)) {
      return out_of_bounds(
          fmt::format("the form of quiet times has a layer at {}, the first "
                      "precision allowed is {}",
                      to_string(layer), to_string(first)));
    }
  }
  const Form full = with_fitting_kv(bounds, bounds.full);
  if (full.kv.blocks <= 0) {
    return make_error(ErrorCode::kExhausted, "{} leave no page of {} for KV with layers at {}",
                      format_bytes(bounds.budget.pages * bounds.budget.page_bytes),
                      format_bytes(bounds.budget.page_bytes), precision_label(bounds.full));
  }
  return {};
}

std::vector<Form> form_path(const FormBounds& bounds) {
  std::vector<Form> path = {with_fitting_kv(bounds, bounds.full)};
  for (std::size_t rung = 1; rung < bounds.ladder.size(); ++rung) {
    const Precision precision = bounds.ladder[rung];
    std::vector<Form> forms = rung_forms(bounds, path.back(), order_of(bounds), precision);
    lower_embeddings(bounds, precision, path.back(), forms);
    for (Form& form : forms) {
      path.push_back(with_fitting_kv(bounds, std::move(form)));
    }
  }
  return path;
}

std::vector<Form> forms_off_path(const FormBounds& bounds, const std::vector<Form>& path) {
  std::vector<Form> off_path;
  const auto add = [&](Form form) {
    form = with_fitting_kv(bounds, std::move(form));
    form.kv.blocks = std::min(form.kv.blocks, path.back().kv.blocks);
    if (std::none_of(path.begin(), path.end(),
                     [&](const Form& of) { return equally_precise(of, form); })) {
      off_path.push_back(std::move(form));
    }
  };
  if (path.size() == 1) {
    return off_path;  // no form may be lower
  }
  if (auto lower = with_lower_embeddings(bounds, path.front())) {
    add(*std::move(lower));
  }
  const std::vector<SwapTarget> order = order_of(bounds);
  const auto half = std::span(order).first(order.size() / 2);
  for (std::size_t rung = 2; rung < bounds.ladder.size(); ++rung) {
    const auto bits = weight_bits(bounds.ladder[rung - 2]);
    const auto before = std::find_if(path.begin(), path.end(), [&](const Form& form) {
      return weight_bits(highest_precision(form)) <= bits;
    });
    if (before == path.end()) {
      break;  // the floor is above
    }
    if (std::vector<Form> forms = rung_forms(bounds, *before, half, bounds.ladder[rung]);
        !forms.empty()) {
      add(std::move(forms.back()));
    }
  }
  return off_path;
}

}  // namespace protean
