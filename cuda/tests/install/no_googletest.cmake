# Configures SOURCE where GoogleTest is not found: without tests by default, with a message; an error if they are asked for.
file(REMOVE_RECURSE "${WORK}")
set(configure "${CMAKE_COMMAND}" -S "${SOURCE}" -DCMAKE_C_COMPILER=${CC} -DCMAKE_CXX_COMPILER=${CXX} -DWCUDA_CUDA=OFF
  -DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON)

execute_process(COMMAND ${configure} -B "${WORK}/default" RESULT_VARIABLE status OUTPUT_VARIABLE text
  ERROR_VARIABLE text)
if(NOT status EQUAL 0 OR NOT text MATCHES "GoogleTest not found, building no tests")
  message(FATAL_ERROR "by default: ${status}\n${text}")
endif()

execute_process(COMMAND ${configure} -B "${WORK}/wanted" -DWCUDA_BUILD_TESTS=ON RESULT_VARIABLE status
  OUTPUT_VARIABLE text ERROR_VARIABLE text)
if(status EQUAL 0 OR NOT text MATCHES "GTest")
  message(FATAL_ERROR "with WCUDA_BUILD_TESTS=ON: ${status}\n${text}")
endif()
