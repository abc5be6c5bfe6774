# wcuda_add_abi_fuzzer(NAME LIBRARY): the program NAME CALLS THREADS SEED FOLDER, which calls the C interface of LIBRARY
# with hostile arguments and works in FOLDER. The calls are generated from the headers; no libFuzzer. With any compiler
# as a test, and with sanitizers as a fuzz target.
find_package(Python3 REQUIRED COMPONENTS Interpreter)

function(wcuda_add_abi_fuzzer name library)
  set(calls ${CMAKE_CURRENT_BINARY_DIR}/abi/abi_calls.inc)
  set(tools ${PROJECT_SOURCE_DIR}/../tools/abi)
  file(GLOB headers ${PROJECT_SOURCE_DIR}/include/worker_cuda/*.h)
  add_custom_command(OUTPUT ${calls} COMMAND ${Python3_EXECUTABLE} ${tools}/fuzz.py ${calls}
    DEPENDS ${tools}/fuzz.py ${tools}/header.py ${headers})
  add_executable(${name} ${PROJECT_SOURCE_DIR}/fuzz/abi/fuzz.cpp ${calls})
  # The calls take long to optimize and no time to run.
  set_source_files_properties(${PROJECT_SOURCE_DIR}/fuzz/abi/fuzz.cpp PROPERTIES COMPILE_OPTIONS -O0)
  target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/abi)
  target_compile_options(${name} PRIVATE -Wall -Wextra -Werror)
  target_compile_definitions(${name} PRIVATE WCUDA_FUZZ_MODEL="${PROJECT_SOURCE_DIR}/tests/data/models/llama.gguf")
  target_link_libraries(${name} PRIVATE ${library})
endfunction()
