#pragma once

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace tandem::cli {

// Prints what parsing the command line ended with, help included, and returns the exit code. CLI11
// names what is missing before what it does not know, although a misspelled word is most often why
// something is missing: here the unknown word comes first, with the nearest that exists.
[[nodiscard]] int report_usage(const CLI::App& app, const CLI::ParseError& error);

}  // namespace tandem::cli
