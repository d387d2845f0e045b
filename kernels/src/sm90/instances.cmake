# The source files of the sm_90a kernels' instances, made from instances.def: one for each kind, head sizes and element
# type, so that they compile beside one another. They lie in the build folder and are written only when they change.
#
#   fdma_sm90_instances(<variable>)   the paths of the files to compile, in <variable>
#
# FDMA_SM90_INSTANCES names the files that are compiled. The launch functions of the others are there as well, in
# left_out.cu, and return cudaErrorNotSupported: such a build links and passes every test that launches nothing.
set(FDMA_SM90_INSTANCES all CACHE STRING
  "Instances of the sm_90a kernels to compile: all, or a list of names such as forward_128_bfloat16 (calls of others fail)")

# fdma_sm90_instance(<name> <header> <params> <template id>..): a file that instantiates launch functions; adds its path to
# `files` of the caller, or what stands for it to `left_out`.
function(fdma_sm90_instance name header params)
  set(file ${CMAKE_CURRENT_BINARY_DIR}/sm90/${name}.cu)
  set(text "// Made by kernels/src/sm90/instances.cmake from instances.def.\n#include \"${header}\"\n\nnamespace fdma::sm90 {\n\n")
  foreach(launch ${ARGN})
    string(APPEND text "template cudaError_t ${launch}(const ${params}&, int, cudaStream_t);\n")
  endforeach()
  string(APPEND text "\n}  // namespace fdma::sm90\n")
  set(names ${names} ${name} PARENT_SCOPE)
  file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
  if(FDMA_SM90_INSTANCES STREQUAL "all" OR name IN_LIST FDMA_SM90_INSTANCES)
    set(files ${files} ${file} PARENT_SCOPE)
  else()
    # Made anew when it is compiled again: what ptxas said of an older source is not for tests/run.sh to count.
    set(object ${CMAKE_CURRENT_BINARY_DIR}/fdma_kernels.cuda/${name}.cu.o)
    file(REMOVE ${object} ${object}.ptxas.log)
    foreach(launch ${ARGN})
      string(APPEND left_out "template <>\ncudaError_t ${launch}(const ${params}&, int, cudaStream_t) {\n  return cudaErrorNotSupported;\n}\n")
    endforeach()
    set(left_out "${left_out}" PARENT_SCOPE)
  endif()
endfunction()

function(fdma_sm90_instances variable)
  set(list ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/instances.def)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${list})
  file(STRINGS ${list} lines REGEX "^FDMA_SM90_[A-Z]+\\([0-9, ]+\\)$")
  set(types bfloat16 float16)
  set(bfloat16 __nv_bfloat16)
  set(float16 __half)
  set(names)
  set(files)
  set(left_out)
  foreach(line ${lines})
    string(REGEX MATCH "SM90_([A-Z]+)" _ ${line})
    set(kind ${CMAKE_MATCH_1})
    string(REGEX MATCH "\\(([0-9]+)(, ([0-9]+))?\\)" _ ${line})
    set(dim ${CMAKE_MATCH_1})
    set(dim_v ${CMAKE_MATCH_3})
    foreach(type ${types})
      set(T ${${type}})
      if(kind STREQUAL "BACKWARD")
        # Above 128 a launch for dV and one for dK and dQ (attention_backward.cu). The shifts' kernel is general.
        set(gradients all)
        if(dim GREATER 128)
          set(gradients values keys)
        endif()
        foreach(reader KeyTiles WorklistKeys)
          set(launches)
          foreach(gradient ${gradients})
            foreach(score LinearScore KeyBiasScore)
              list(APPEND launches
                "launch_backward<${T}, ${score}, NoWeight, ${reader}, Gradients::${gradient}, ${dim}, ${dim}>")
            endforeach()
          endforeach()
          list(APPEND launches "launch_backward<${T}, KeyBiasScore, NoWeight, ${reader}, Gradients::shifts, ${dim}, ${dim}>")
          set(name backward)
          if(reader STREQUAL "WorklistKeys")
            set(name worklist)
          endif()
          fdma_sm90_instance(${name}_${dim}_${type} sm90/backward/kernel.cuh BackwardParams ${launches})
        endforeach()
      else()
        set(reader ContiguousKeys)
        set(name forward)
        if(kind STREQUAL "GATHER")
          set(reader IndexedKeys)
          set(name gather)
        endif()
        set(dims ${dim})
        if(NOT dim EQUAL dim_v)
          set(dims ${dim}_${dim_v})
        endif()
        fdma_sm90_instance(${name}_${dims}_${type} sm90/forward/kernel.cuh ForwardParams
          "launch_forward<${T}, LinearScore, NoWeight, ${reader}, ${dim}, ${dim_v}>"
          "launch_forward<${T}, KeyBiasScore, NoWeight, ${reader}, ${dim}, ${dim_v}>")
      endif()
    endforeach()
  endforeach()
  foreach(name ${FDMA_SM90_INSTANCES})
    if(NOT name STREQUAL "all" AND NOT name IN_LIST names)
      message(FATAL_ERROR "FDMA_SM90_INSTANCES: no instance is called ${name}. There are ${names}")
    endif()
  endforeach()
  # Those of lines that are no longer there, which .ci/kernel_record.py would take for instances.
  file(GLOB former ${CMAKE_CURRENT_BINARY_DIR}/sm90/*.cu)
  foreach(file ${former})
    get_filename_component(name ${file} NAME_WE)
    if(NOT name IN_LIST names AND NOT name STREQUAL "left_out")
      file(REMOVE ${file})
    endif()
  endforeach()
  set(file ${CMAKE_CURRENT_BINARY_DIR}/sm90/left_out.cu)
  if(left_out)
    message(STATUS "FDMA: some kernels of sm_90a are left out (FDMA_SM90_INSTANCES), calls that need them fail")
    file(CONFIGURE OUTPUT ${file} @ONLY CONTENT "// Made by kernels/src/sm90/instances.cmake: instances that are not compiled.
#include \"sm90/backward/kernels.hpp\"
#include \"sm90/forward/kernels.hpp\"

namespace fdma::sm90 {

${left_out}
}  // namespace fdma::sm90
")
    list(APPEND files ${file})
  else()
    set(object ${CMAKE_CURRENT_BINARY_DIR}/fdma_kernels.cuda/left_out.cu.o)
    file(REMOVE ${file} ${object} ${object}.ptxas.log)
  endif()
  set(${variable} ${files} PARENT_SCOPE)
endfunction()
