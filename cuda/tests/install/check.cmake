# Installs BUILD into an empty prefix below WORK, then builds and runs the programs of this folder on it,
# once through find_package and once through pkg-config. Fails with the output of what failed. CUDA is 1 if
# BUILD has the CUDA backend, which both ways must then report.
set(here "${CMAKE_CURRENT_LIST_DIR}")
set(prefix "${WORK}/prefix")
file(REMOVE_RECURSE "${WORK}")

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE text ERROR_VARIABLE text
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGV}: ${status}\n${text}")
  endif()
  set(output "${text}" PARENT_SCOPE)
endfunction()

# The C++ program prints what the archive was built with.
function(check_backend text)
  if(text MATCHES "from C\\+\\+" AND NOT text MATCHES ", cuda ${CUDA}$")
    message(FATAL_ERROR "'${text}' does not end with ', cuda ${CUDA}'")
  endif()
endfunction()

run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${prefix}")
run("${CMAKE_COMMAND}" -S "${here}" -B "${WORK}/user" -DCMAKE_PREFIX_PATH=${prefix}
  -DCMAKE_C_COMPILER=${CC} -DCMAKE_CXX_COMPILER=${CXX})
run("${CMAKE_COMMAND}" --build "${WORK}/user")
foreach(program user_c user_cpp)
  run("${WORK}/user/${program}")
  message(STATUS "find_package: ${output}")
  check_backend("${output}")
endforeach()

find_program(pkg_config NAMES pkg-config pkgconf)
if(NOT pkg_config)
  message(FATAL_ERROR "pkg-config is missing: apt-get install pkg-config")
endif()
set(ENV{PKG_CONFIG_PATH} "${prefix}/${LIBDIR}/pkgconfig")
run("${pkg_config}" --variable=cuda worker_cuda)
if(NOT output STREQUAL CUDA)
  message(FATAL_ERROR "worker_cuda.pc has cuda=${output}, the build has ${CUDA}")
endif()
run("${pkg_config}" --cflags --libs worker_cuda)
separate_arguments(flags UNIX_COMMAND "${output}")
foreach(source user.c user.cpp)
  set(compiler "${CC}")
  if(source MATCHES "cpp$")
    set(compiler "${CXX}")
  endif()
  run("${compiler}" "${here}/${source}" -o "${WORK}/${source}.bin" ${flags})
  run("${WORK}/${source}.bin")
  message(STATUS "pkg-config: ${output}")
  check_backend("${output}")
endforeach()
