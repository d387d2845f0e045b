# CUDA sources. nvcc is called by rules of our own, not as a language of CMake: CMake 3.25 does not know C++20 for every
# nvcc, and cmake/nvcc_checked.sh has to see what ptxas says. -arch=sm_90a would compile for compute_90 too, which lacks
# wgmma.
if(FDMA_HAS_CUDA)
  if(NOT CUDAToolkit_ROOT)
    get_filename_component(CUDAToolkit_ROOT ${FDMA_NVCC} REALPATH)
    get_filename_component(CUDAToolkit_ROOT ${CUDAToolkit_ROOT} DIRECTORY)
    get_filename_component(CUDAToolkit_ROOT ${CUDAToolkit_ROOT} DIRECTORY)
  endif()
  find_package(CUDAToolkit REQUIRED)
endif()

# fdma_cuda_sources(<target> sources..): compiles them with nvcc and the include folders of the target, adds the objects
# to it and links the CUDA runtime statically. The driver is loaded at run time. A compiler cache, if there is one, also
# returns the messages of ptxas, so that cached objects are checked like new ones.
function(fdma_cuda_sources target)
  set(checked ${PROJECT_SOURCE_DIR}/cmake/nvcc_checked.sh)
  if(FDMA_CUDA_BOUNDED_WAITS OR FDMA_CUDA_EVERY_LANE_ARRIVES)
    # The printf of a bounded wait and the arrivals of all lanes serialise wgmma, which the check would refuse.
    set(checked)
  endif()
  set(includes "$<REMOVE_DUPLICATES:$<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>>")
  foreach(source ${ARGN})
    get_filename_component(name ${source} NAME)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${target}.cuda/${name}.o)
    file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/${target}.cuda)
    add_custom_command(OUTPUT ${object}
      COMMAND ${checked} ${CMAKE_CUDA_COMPILER_LAUNCHER} ${FDMA_NVCC} -std=c++20
        -gencode arch=compute_90a,code=sm_90a -O3 -Xptxas -v
        "$<$<BOOL:${FDMA_CUDA_BOUNDED_WAITS}>:-DFDMA_BOUNDED_WAITS>"
        "$<$<BOOL:${FDMA_CUDA_EVERY_LANE_ARRIVES}>:-DFDMA_EVERY_LANE_ARRIVES>"
        -Xcompiler -Wall,-Wextra,-fPIC -ccbin ${CMAKE_CXX_COMPILER} "$<$<BOOL:${FDMA_WERROR}>:-Werror;all-warnings>"
        "$<$<BOOL:${includes}>:-I$<JOIN:${includes},;-I>>" -MD -MF ${object}.d -c ${source} -o ${object}
      DEPENDS ${source} ${PROJECT_SOURCE_DIR}/cmake/nvcc_checked.sh DEPFILE ${object}.d
      COMMENT "Compiling CUDA source ${name}" COMMAND_EXPAND_LISTS VERBATIM)
    target_sources(${target} PRIVATE ${object})
  endforeach()
  target_link_libraries(${target} PRIVATE CUDA::cudart_static)
endfunction()
