# The language CUDA and the static runtime, from a system toolkit or from PyPI wheels (nvidia/cu13).
# Sets WCUDA_HAS_CUDA, and with it WCUDA_CUDA_TOOLKIT, WCUDA_CUDART_STATIC and WCUDA_CUDA_INCLUDE.
#
# WCUDA_CUDA=ON|OFF|AUTO. AUTO uses a toolkit when CMake's own probe finds one and says what it chose.
# Architectures come from CMAKE_CUDA_ARCHITECTURES or the environment's CUDAARCHS, else a fixed list:
# never from a look at the machine.
set(WCUDA_CUDA AUTO CACHE STRING "Build the CUDA backend: ON, OFF or AUTO")
set(WCUDA_CUDA_TOOLKIT "" CACHE PATH "Folder that holds bin/nvcc; empty: let CMake find nvcc")
set(WCUDA_HAS_CUDA OFF)
set(WCUDA_CUDA_VERSION 0)
set(WCUDA_CUDA_ARCHITECTURES "")

if(WCUDA_CUDA STREQUAL "OFF" OR NOT WCUDA_CUDA)
  return()
endif()

# Wheels have no lib64, where nvcc's profile looks for the runtime: without this flag not even the
# compiler check links.
function(wcuda_prepare_toolkit root)
  if(NOT EXISTS "${root}/lib64" AND EXISTS "${root}/lib/libcudart_static.a")
    set(flag "-L${root}/lib")
    if(NOT DEFINED CMAKE_CUDA_FLAGS)
      set(CMAKE_CUDA_FLAGS "$ENV{CUDAFLAGS}") # which CMake reads only where nothing has set the variable
    endif()
    if(NOT CMAKE_CUDA_FLAGS MATCHES "${flag}")
      set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} ${flag}" CACHE STRING "Flags of nvcc" FORCE)
    endif()
  endif()
endfunction()

if(WCUDA_CUDA_TOOLKIT)
  set(CMAKE_CUDA_COMPILER "${WCUDA_CUDA_TOOLKIT}/bin/nvcc" CACHE FILEPATH "nvcc")
  wcuda_prepare_toolkit("${WCUDA_CUDA_TOOLKIT}")
elseif(WCUDA_CUDA STREQUAL "AUTO")
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    message(STATUS "worker_cuda: no CUDA toolkit found, building the host backend only")
    return()
  endif()
endif()

if(NOT CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  set(CMAKE_CUDA_ARCHITECTURES "80-real;86-real;89-real;90a-real;100-real;120")
endif()
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
# The static runtime is named where the archive is linked, so that nvcc adds none of its own.
set(CMAKE_CUDA_RUNTIME_LIBRARY None)
enable_language(CUDA)
if(CMAKE_CUDA_ARCHITECTURES STREQUAL "native")
  message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES=native depends on the machine that builds; name them")
endif()

if(NOT WCUDA_CUDA_TOOLKIT)
  get_filename_component(nvcc "${CMAKE_CUDA_COMPILER}" REALPATH)
  get_filename_component(WCUDA_CUDA_TOOLKIT "${nvcc}/../.." ABSOLUTE)
endif()
find_library(WCUDA_CUDART_STATIC cudart_static REQUIRED NO_DEFAULT_PATH PATHS
  "${WCUDA_CUDA_TOOLKIT}/lib64" "${WCUDA_CUDA_TOOLKIT}/targets/x86_64-linux/lib"
  "${WCUDA_CUDA_TOOLKIT}/lib" ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES})
find_path(WCUDA_CUDA_INCLUDE cuda_runtime_api.h REQUIRED NO_DEFAULT_PATH PATHS
  "${WCUDA_CUDA_TOOLKIT}/include" "${WCUDA_CUDA_TOOLKIT}/targets/x86_64-linux/include"
  ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})

file(STRINGS "${WCUDA_CUDA_INCLUDE}/cuda.h" line REGEX "^#define CUDA_VERSION [0-9]+")
string(REGEX REPLACE "[^0-9]" "" WCUDA_CUDA_VERSION "${line}")
if(WCUDA_CUDA_VERSION LESS 13000)
  message(FATAL_ERROR "CUDA toolkit ${WCUDA_CUDA_VERSION} in ${WCUDA_CUDA_TOOLKIT}; needs 13000 or newer")
endif()
set(WCUDA_HAS_CUDA ON)
set(WCUDA_CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}")
message(STATUS "worker_cuda: CUDA ${WCUDA_CUDA_VERSION} in ${WCUDA_CUDA_TOOLKIT}, "
  "architectures ${CMAKE_CUDA_ARCHITECTURES}")
