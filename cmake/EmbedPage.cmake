# cmake -DPAGE=page.html -DOUTPUT=page.cc -DSYMBOL=name -P EmbedPage.cmake
# Inlines page.css and page.js (marked by /*@page.css*/ and /*@page.js*/) and writes the page as a
# byte array: `extern const unsigned char SYMBOL[]; extern const size_t SYMBOL_size;` in tandem::router.
get_filename_component(folder "${PAGE}" DIRECTORY)
file(READ "${PAGE}" page)
foreach(part page.css page.js)
  file(READ "${folder}/${part}" text)
  string(REPLACE "/*@${part}*/" "${text}" page "${page}")
endforeach()
file(WRITE "${OUTPUT}.html" "${page}")
file(READ "${OUTPUT}.html" hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
file(WRITE "${OUTPUT}" "#include <cstddef>
namespace tandem::router {
extern const unsigned char ${SYMBOL}[];
extern const size_t ${SYMBOL}_size;
const unsigned char ${SYMBOL}[] = {${bytes}};
const size_t ${SYMBOL}_size = sizeof(${SYMBOL});
}  // namespace tandem::router
")
