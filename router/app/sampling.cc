#include "router/app/sampling.h"

#include "common/model/checkpoint.h"
#include "common/model/sampling_defaults.h"

namespace tandem::router {

Result<SamplingDefaults> sampling_defaults(const SamplingSettings& settings,
                                           const model::Checkpoint& checkpoint, const Logger& log) {
  TANDEM_ASSIGN(const model::SamplingDefaults recommended,
                model::recommended_sampling(settings, checkpoint));
  const auto either = [](const auto& file, const auto& model) { return file ? file : model; };
  SamplingDefaults out;
  out.temperature = either(settings.temperature, recommended.temperature);
  // The model's: the file's is checked where it is read.
  if (out.temperature && *out.temperature > kMaxTemperature) {
    log.warning(
        "sampling_defaults",
        {{"message", "the model recommends a higher temperature than a request may ask for"},
         {"recommended", *out.temperature},
         {"used", kMaxTemperature}});
    out.temperature = kMaxTemperature;
  }
  out.top_p = either(settings.top_p, recommended.top_p);
  out.top_k = either(settings.top_k, recommended.top_k);
  out.min_p = either(settings.min_p, recommended.min_p);
  out.repetition_penalty = either(settings.repetition_penalty, recommended.repetition_penalty);
  out.chat_max_tokens = recommended.max_new_tokens.value_or(0);
  log.info("sampling_defaults",
           {{"values", sampling_defaults_json(out)}, {"from_model", settings.from_model}});
  return out;
}

}  // namespace tandem::router
