# Install rules, the package config (find_package(worker_cuda)) and the pkg-config file.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(WCUDA_PC_CUDA 0)
set(WCUDA_PC_CUDART_DIR "")
set(WCUDA_PC_CUDA_LIBS "")
if(WCUDA_HAS_CUDA)
  set(WCUDA_PC_CUDA 1)
  get_filename_component(WCUDA_PC_CUDART_DIR "${WCUDA_CUDART_STATIC}" DIRECTORY)
  set(WCUDA_PC_CUDA_LIBS "-L\${cudart_dir} -lcudart_static -lrt ")
endif()

install(TARGETS worker_cuda worker_cuda_compat EXPORT worker_cuda_targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT worker_cuda_targets NAMESPACE worker_cuda::
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/worker_cuda)

configure_package_config_file(cmake/worker_cudaConfig.cmake.in worker_cudaConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/worker_cuda NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(worker_cudaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/worker_cudaConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/worker_cudaConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/worker_cuda)

configure_file(cmake/worker_cuda.pc.in worker_cuda.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/worker_cuda.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
