# What every target of FDMA is made with.

# fdma_compile_options(<target>): warnings, errors for them where asked, sanitizers, coverage for fuzzers.
function(fdma_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow $<$<BOOL:${FDMA_WERROR}>:-Werror>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC 12 takes the inactive alternatives of a moved std::variant for uninitialised variables, and
    # at -O3 the concatenation of two strings for an overlapping copy.
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized -Wno-restrict)
    # GCC takes the sources that a unity source includes for headers, and warns if their types use unnamed namespaces.
    target_compile_options(${target} PRIVATE $<$<BOOL:${FDMA_UNITED}>:-Wno-subobject-linkage>)
  endif()
  if(FDMA_BUILD_FUZZERS)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
  if(FDMA_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${FDMA_SANITIZE} -fno-omit-frame-pointer
      -fno-sanitize-recover=all)
    target_link_options(${target} PRIVATE -fsanitize=${FDMA_SANITIZE})
  endif()
endfunction()

# fdma_united(<list> <name>): with FDMA_UNITED, replaces the sources of the list by unity sources that include them
# (united_sources.py), in the folder united/<name> of the build. A change of a source configures the build again, since
# it may change which sources can be joined. The sources of FDMA_UNITED_APART stay alone.
function(fdma_united list name)
  if(NOT FDMA_UNITED OR NOT ${list})
    return()
  endif()
  set(script ${PROJECT_SOURCE_DIR}/cmake/united_sources.py)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${script} ${${list}})
  set(together)
  set(apart)
  foreach(source ${${list}})
    get_filename_component(path ${source} ABSOLUTE)
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${path})
    if(path IN_LIST FDMA_UNITED_APART)
      list(APPEND apart ${source})
    else()
      list(APPEND together ${source})
    endif()
  endforeach()
  execute_process(COMMAND ${Python3_EXECUTABLE} ${script} ${PROJECT_BINARY_DIR}/united/${name} ${together}
    OUTPUT_VARIABLE united COMMAND_ERROR_IS_FATAL ANY)
  set(${list} ${united} ${apart} PARENT_SCOPE)
endfunction()

# fdma_library(<name> INCLUDE dir SOURCES ... [LINK fdma::a ...] [PRIVATE_LINK lib ...])
#
# A library of FDMA with its public include folder. It sees the public headers of what LINK names and of nothing
# else, so an include that the layering forbids does not compile (tests/include_rule). The folder is kept as property
# FDMA_INCLUDE_DIR for the install rules and for the test that compiles each header alone.
function(fdma_library name)
  cmake_parse_arguments(ARG "" "INCLUDE" "SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  fdma_united(ARG_SOURCES ${name})
  add_library(fdma_${name} STATIC ${ARG_SOURCES})
  add_library(fdma::${name} ALIAS fdma_${name})
  set_target_properties(fdma_${name} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON
    FDMA_INCLUDE_DIR ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_INCLUDE})
  target_compile_features(fdma_${name} PUBLIC cxx_std_20)
  target_include_directories(fdma_${name} PUBLIC
    $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/${ARG_INCLUDE}> $<INSTALL_INTERFACE:include>
    PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src)
  target_link_libraries(fdma_${name} PUBLIC ${ARG_LINK} PRIVATE ${ARG_PRIVATE_LINK})
  fdma_compile_options(fdma_${name})
endfunction()
