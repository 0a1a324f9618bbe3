# docs/configuration.md is generated from the config schema; a stale copy fails.
execute_process(COMMAND "${GENERATOR}" OUTPUT_VARIABLE generated RESULT_VARIABLE code)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "${GENERATOR} failed: ${code}")
endif()
file(READ "${PAGE}" committed)
if(NOT generated STREQUAL committed)
  message(FATAL_ERROR "${PAGE} is stale; run: ${GENERATOR} > ${PAGE}")
endif()
