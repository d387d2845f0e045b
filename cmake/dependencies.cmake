# Every library that FDMA uses but does not own. Each is linked PRIVATE by the one target that needs it.
# What the installed static libraries need at link time is repeated in fdma-config.cmake.in.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(TBB REQUIRED)
find_package(hwy REQUIRED)
find_package(HDF5 REQUIRED COMPONENTS C)  # its module needs the language C
find_package(Libdeflate REQUIRED)  # cmake/FindLibdeflate.cmake
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
find_package(nlohmann_json REQUIRED)
if(FDMA_BUILD_TOOLS)
  find_package(Boost REQUIRED COMPONENTS program_options)
  find_package(spdlog REQUIRED)
  find_package(PNG REQUIRED)
endif()
if(FDMA_BUILD_TESTS OR FDMA_UNITED)
  find_package(Python3 3.11 REQUIRED COMPONENTS Interpreter)
endif()
if(FDMA_BUILD_TESTS)
  find_package(GTest REQUIRED)
  find_path(RAPIDCHECK_INCLUDE_DIR rapidcheck.h REQUIRED)
  find_library(RAPIDCHECK_LIBRARY rapidcheck REQUIRED)
endif()
if(FDMA_BUILD_BENCHMARKS)
  find_package(benchmark REQUIRED)
endif()
if(FDMA_BUILD_PYTHON)
  # nanobind works with CMake's module Python; tests and presets name the interpreter by Python3_EXECUTABLE.
  if(Python3_EXECUTABLE AND NOT Python_EXECUTABLE)
    set(Python_EXECUTABLE ${Python3_EXECUTABLE})
  endif()
  find_package(Python 3.10 COMPONENTS Interpreter Development.Module OPTIONAL_COMPONENTS Development.SABIModule)
  if(NOT Python_Interpreter_FOUND OR NOT Python_Development.Module_FOUND)
    message(FATAL_ERROR "FDMA_BUILD_PYTHON=ON: expected Python 3.10 or newer with its headers (Debian: python3-dev); "
      "name another interpreter by -DPython3_EXECUTABLE=..")
  endif()
  execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
    OUTPUT_VARIABLE nanobind_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_package(nanobind CONFIG)
  if(NOT nanobind_FOUND)
    message(FATAL_ERROR "FDMA_BUILD_PYTHON=ON: ${Python_EXECUTABLE} has no package nanobind. Install it there "
      "(pip install nanobind), or configure with -DFDMA_BUILD_PYTHON=OFF.")
  endif()
endif()
