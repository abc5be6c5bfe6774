# wcuda_compile_by_folder(TARGET): the C++ files of a folder are one translation unit, which reads the headers and
# instantiates their templates once. In the tests and fuzz targets, which are compiled often: names in the anonymous
# namespaces of a folder differ there. Files with options of their own or SKIP_UNITY_BUILD_INCLUSION stay alone, so do
# those added later. WCUDA_COMPILE_BY_FOLDER=OFF compiles each file alone. The library's files are changed one at a time and
# compiled so, unless WCUDA_COMPILE_LIBRARY_BY_FOLDER=ON: builds from nothing take two thirds of the time.
option(WCUDA_COMPILE_BY_FOLDER "Compile the tests and the fuzz targets folder by folder" ON)
option(WCUDA_COMPILE_LIBRARY_BY_FOLDER "Compile the library folder by folder" OFF)

function(wcuda_compile_by_folder target)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  foreach(source IN LISTS sources)
    get_filename_component(folder ${source} ABSOLUTE)
    file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${folder})
    get_filename_component(folder ${folder} DIRECTORY)
    string(MAKE_C_IDENTIFIER ${folder} group)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${WCUDA_COMPILE_BY_FOLDER} UNITY_BUILD_MODE GROUP)
endfunction()
