#pragma once

#include <functional>
#include <string>

#include "common/config/cluster_config.h"

namespace tandem {

// Reports what no single field can know: (key, what is wrong).
using ProblemSink = std::function<void(std::string key, std::string what)>;

// Gives nameless nodes their names.
void fill_node_names(ClusterConfig& config);

// Pure: looks at nothing but `config`, whose node names are filled in.
void validate(const ClusterConfig& config, const ProblemSink& report);

// Looks at the disk: files and folders that the config names must be there.
void validate_paths(const ClusterConfig& config, const ProblemSink& report);

}  // namespace tandem
