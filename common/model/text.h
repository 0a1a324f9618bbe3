#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/text/load.h"

namespace tandem::model {

class Checkpoint;
class GgufFile;

// The tokenizer and chat template a model brings along, from its folder or from its GGUF metadata.
// `clock` must outlive the result; the checkpoint need not.
[[nodiscard]] Result<text::TextModel> load_text(const Checkpoint& checkpoint, const Clock& clock);

// The `tokenizer.*` keys as the text stack wants them. Checks types, not sense.
[[nodiscard]] Result<text::GgufVocabulary> gguf_vocabulary(const GgufFile& file);

}  // namespace tandem::model
