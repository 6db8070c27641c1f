// What operators and the fleet ask of a form.

#include <algorithm>
#include <utility>

#include "control/plan_morph.h"
#include "cost/pages.h"
#include "engine/form_steering.h"

namespace protean {
namespace {

template <class... Args>
Error refused(fmt::format_string<Args...> format, Args&&... args) {
  return Error{ErrorCode::kInvalidArgument,
               "this form cannot be had: " + fmt::format(format, std::forward<Args>(args)...)};
}

// Refuses for want of memory.
template <class... Args>
Error too_large(fmt::format_string<Args...> format, Args&&... args) {
  return Error{ErrorCode::kExhausted,
               "this form cannot be had: " + fmt::format(format, std::forward<Args>(args)...)};
}

std::string names_of(const std::vector<Precision>& ladder) {
  std::string names;
  for (const Precision precision : ladder) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", to_string(precision));
  }
  return names;
}

}  // namespace

WishAnswered FormSteering::on(const WantForm& want) {
  return {.wish_id = want.wish_id, .morph = grant(want.wish)};
}

Result<Morph> FormSteering::lead_to(const FormWish& wish) {
  const Result<Form> form = form_of(wish);
  return form.ok() ? go_to(*form, "the fleet's order") : form.error();
}

void FormSteering::resume() {
  if (pin_) {
    const Result<Form> form = form_of(*pin_);
    if (form.ok() && go_to(*form, "an operator's wish").ok()) {
      return;
    }
    end_pin();
  }
  take_free_pages();
  promise_kv();
}

void FormSteering::end_pin() {
  pin_.reset();
  ++changes_;
}

bool FormSteering::at_pin() const {
  const Form& now = run_.committed();
  return !pin_ || run_.busy() ||
         (pin_->layers == now.layer_precision && pin_->embeddings == now.embeddings);
}

Result<Morph> FormSteering::grant(const FormWish& wish) {
  if (wish.names_form() + wish.release + wish.names_policy() > 1) {
    return refused(
        "a form, its release, and the policy's mode and quality floor are wishes of their own: ask "
        "for one after the other");
  }
  if (wish.names_policy()) {
    return grant_policy(wish);
  }
  if (wish.release) {
    return grant_release();
  }
  if (wish.rest_pages) {
    return grant_rest(wish);
  }
  const Result<Form> form = form_of(wish);
  if (!form.ok()) {
    return form.error();
  }
  const bool comes_back = !wish.kv_blocks && config_.bounds.budget.pages < own_pages();
  Result<Morph> morph =
      go_to(*form, "an operator's wish", comes_back ? with_kv_in(*form, own_pages()).kv.blocks : 0);
  if (morph.ok()) {
    memory_.kv.pin_grows = !wish.kv_blocks;
    pin_ = FormWish{.layers = form->layer_precision, .embeddings = form->embeddings};
    ++changes_;
    promise_kv();
  }
  return morph;
}

Result<Morph> FormSteering::grant_release() {
  if (config_.mode == MorphMode::kOff) {
    Form rest = config_.rest;
    const std::int64_t now = std::min(config_.bounds.budget.pages, own_pages());
    const std::int64_t later = config_.own_pages > 0 ? with_kv_in(rest, own_pages()).kv.blocks : 0;
    rest.kv.blocks = later > 0 ? with_kv_in(rest, now).kv.blocks : rest.kv.blocks;
    const bool as_opened = config_.rest == config_.opened;
    Result<Morph> morph =
        go_to(rest,
              fmt::format("released by an operator: the form {}",
                          as_opened ? "as it was loaded" : "that an intent chose"),
              later);
    if (morph.ok()) {
      end_pin();
      promise_kv();
    }
    return morph;
  }
  end_pin();
  promise_kv();
  return Morph{.steps = {}, .reason = "handed back to the policy"};
}

// More pages come before the morph, which may need them. Fewer follow after it, once KV has given
// them up.
Result<Morph> FormSteering::grant_rest(const FormWish& wish) {
  if (Status served = check_precisions(wish); !served.ok()) {
    return served.error();
  }
  PageBudget& budget = config_.bounds.budget;
  FormWish within = wish;
  const bool trades = config_.own_pages > 0;
  const std::int64_t before = budget.pages;
  const std::int64_t kept = memory_.wanted.pages_after_morph > 0 ? memory_.wanted.pages_after_morph
                                                                 : memory_.wanted.pages;
  const std::int64_t pages = trades ? before : *wish.rest_pages;
  if (!trades) {
    if (pages > before && !run_.set_quota(pages)) {
      return too_large("its device has no {} more",
                       format_bytes((pages - before) * budget.page_bytes));
    }
    budget.pages = std::max(before, pages);
    Form named = run_.committed();
    named.layer_precision = wish.layers.empty() ? named.layer_precision : wish.layers;
    named.embeddings = wish.embeddings.value_or(named.embeddings);
    within.kv_blocks = with_kv_in(named, pages).kv.blocks;
  }
  const Result<Form> form = form_of(within);
  Result<Morph> morph = form.ok() ? go_to(*form, "the model's intent") : form.error();
  if (!trades) {
    const std::int64_t rest = morph.ok() ? pages : kept;
    memory_.wanted.pages = budget.pages;
    memory_.wanted.pages_after_morph = rest < budget.pages ? rest : 0;
  }
  if (!morph.ok()) {
    return morph;
  }
  end_pin();
  config_.rest = *form;
  config_.bounds.full.layer_precision = form->layer_precision;
  config_.bounds.full.embeddings = form->embeddings;
  config_.bounds.full.kv.blocks = form->kv.blocks;
  renew_policy();
  return morph;
}

// `kv_later`: the KV blocks of the form once other models have returned the model's own memory.
Result<Morph> FormSteering::go_to(const Form& form, const std::string& reason,
                                  std::int64_t kv_later) {
  const std::int64_t needed = scheduler_.largest_need();
  if (std::max(form.kv.blocks, kv_later) < needed) {
    return too_large(
        "it has {} KV blocks, but a request that was accepted needs {}: ask for as many, or again "
        "when it has ended",
        form.kv.blocks, needed);
  }
  Result<Morph> morph = plan_morph(run_.committed(), form, config_.bounds);
  if (!morph.ok()) {
    return morph.error();
  }
  morph->reason = reason;
  run_.retarget(*morph, true, now_ns_);
  memory_.kv.shrinks = memory_.kv.grows = false;  // this morph takes its place
  promise_kv();
  return morph;
}

Status FormSteering::check_precisions(const FormWish& wish) const {
  const std::vector<Precision>& ladder = config_.bounds.ladder;
  const Form& opened = config_.opened;
  const std::size_t layers = opened.layer_precision.size();
  if (!wish.layers.empty() && wish.layers.size() != layers) {
    return refused("it names {} layers, the model has {}", wish.layers.size(), layers);
  }
  for (std::size_t layer = 0; layer < wish.layers.size(); ++layer) {
    for (const Component half : kLayerHalves) {
      const Precision precision = wish.layers[layer].of(half);
      const Precision before = opened.layer_precision[layer].of(half);
      const std::vector<Precision> served =
          layer_precisions({.layer_precision = {{before, before}}}, ladder);
      if (std::find(served.begin(), served.end(), precision) == served.end()) {
        return refused("layer {} {} at {}, but served are {}", layer, to_string(half),
                       to_string(precision), names_of(served));
      }
    }
  }
  const std::vector<Precision> embeddings = embeddings_precisions(opened.embeddings, ladder);
  if (wish.embeddings &&
      std::find(embeddings.begin(), embeddings.end(), *wish.embeddings) == embeddings.end()) {
    return refused("embeddings at {}, but served are {}", to_string(*wish.embeddings),
                   names_of(embeddings));
  }
  return {};
}

Result<Form> FormSteering::form_of(const FormWish& wish) const {
  if (Status served = check_precisions(wish); !served.ok()) {
    return served.error();
  }
  const ModelSpec& spec = config_.bounds.spec;
  const PageBudget& budget = config_.bounds.budget;
  Form form = run_.committed();
  if (!wish.layers.empty()) {
    form.layer_precision = wish.layers;
  }
  form.embeddings = wish.embeddings.value_or(form.embeddings);
  // Pages of other models have to go back when those need them.
  const std::int64_t pages = std::min(budget.pages, own_pages());
  const std::int64_t fitting = with_kv_in(form, pages).kv.blocks;
  form.kv.blocks = wish.kv_blocks.value_or(fitting);
  const std::int64_t most =
      config_.own_kv_blocks > 0 ? config_.own_kv_blocks : memory_.largest_kv_blocks;
  if (wish.kv_blocks && *wish.kv_blocks <= 0) {
    return refused("{} KV blocks; it may have 1 to {}", *wish.kv_blocks, most);
  }
  if (wish.kv_blocks && *wish.kv_blocks > most) {
    return too_large("{} KV blocks; with the fewest bits all over it may have 1 to {}",
                     *wish.kv_blocks, most);
  }
  const std::int64_t missing = form_pages(spec, form, budget.page_bytes) + budget.reserve - pages;
  if (missing > 0 || form.kv.blocks <= 0) {
    const std::string what =
        pages < own_pages()
            ? fmt::format(
                  "other models use {} of the model's own memory: set mode off to get it "
                  "back, and ask again",
                  format_bytes((own_pages() - pages) * budget.page_bytes))
            : "lower more layers or ask for fewer blocks";
    return too_large("'{}' lacks {}: with these weights {} KV blocks fit; {}", to_string(form),
                     format_bytes(std::max<std::int64_t>(missing, 1) * budget.page_bytes), fitting,
                     what);
  }
  return form;
}

}  // namespace protean
