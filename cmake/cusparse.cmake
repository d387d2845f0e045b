# The header of cuSPARSE, which the path kernels/src/cusparse is compiled with: the toolkit's, or that of PyPI's package
# nvidia-cusparse in the Python at hand or in .venv (tools/setup.sh puts it there). The library itself is opened at run
# time, by name (kernels/src/cusparse/cusparse_library.cu). FDMA_HAS_CUSPARSE says whether the path is built.
set(FDMA_HAS_CUSPARSE OFF)
if(FDMA_HAS_CUDA)
  set(_folders)
  foreach(_python ${Python3_EXECUTABLE} ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/.venv/bin/python)
    get_filename_component(_prefix ${_python} DIRECTORY)
    file(GLOB _found ${_prefix}/../lib/python3*/site-packages/nvidia/*/include)
    list(APPEND _folders ${_found})
  endforeach()
  # The compiler's default folders are not searched: a header there may belong to another toolkit.
  find_path(FDMA_CUSPARSE_INCLUDE_DIR cusparse.h NO_DEFAULT_PATH HINTS ${CUDAToolkit_INCLUDE_DIRS} PATHS ${_folders}
    DOC "Folder of cusparse.h")
  if(FDMA_CUSPARSE_INCLUDE_DIR)
    set(FDMA_HAS_CUSPARSE ON)
    message(STATUS "FDMA: cusparse.h is in ${FDMA_CUSPARSE_INCLUDE_DIR}, building with the cuSPARSE path")
    # The header is copied into a folder of its own: its own folder may hold headers of another toolkit.
    configure_file(${FDMA_CUSPARSE_INCLUDE_DIR}/cusparse.h ${CMAKE_BINARY_DIR}/cusparse/cusparse.h COPYONLY)
  else()
    message(STATUS "FDMA: no cusparse.h in the toolkit or in a Python package nvidia-cusparse, building without the "
      "cuSPARSE path (it is for tests and benchmarks; pip install --no-deps nvidia-cusparse, or name its folder by "
      "-DFDMA_CUSPARSE_INCLUDE_DIR=..)")
  endif()
endif()
