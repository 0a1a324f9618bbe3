#pragma once

#include <memory>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/model/checkpoint.h"
#include "common/text/load.h"
#include "tools/local/local_model.h"

namespace CLI {
class App;
}

namespace tandem::cli {

// MODEL, --dtype, --kv, --threads, --device, --load-format: the flags of every command that runs a
// model in this process. `options` outlives the parsing.
void add_model_flags(CLI::App& command, local::LocalOptions& options);

// Opens the checkpoint that MODEL names, and prints what the loaders found odd.
[[nodiscard]] Result<std::unique_ptr<model::Checkpoint>> open_model(
    const local::LocalOptions& options);

// Tokenizer and chat template of an opened model.
[[nodiscard]] Result<text::TextModel> load_text(const model::Checkpoint& checkpoint,
                                                const Clock& clock);
// The same for a model that is opened for its text only: weights need not be there.
[[nodiscard]] Result<text::TextModel> load_text_of(const std::string& model, const Clock& clock);

}  // namespace tandem::cli
