# libdeflate: target Libdeflate::Libdeflate. Debian 12's has a pkg-config file but no CMake package; newer ones have both.
# Looked for in CMAKE_PREFIX_PATH and the system's folders; Libdeflate_ROOT names a prefix of its own.
find_path(Libdeflate_INCLUDE_DIR libdeflate.h)
find_library(Libdeflate_LIBRARY NAMES deflate deflatestatic)
if(Libdeflate_INCLUDE_DIR)
  file(STRINGS ${Libdeflate_INCLUDE_DIR}/libdeflate.h _libdeflate_version REGEX "LIBDEFLATE_VERSION_STRING")
  string(REGEX MATCH "[0-9.]+" Libdeflate_VERSION "${_libdeflate_version}")
  unset(_libdeflate_version)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libdeflate REQUIRED_VARS Libdeflate_LIBRARY Libdeflate_INCLUDE_DIR
  VERSION_VAR Libdeflate_VERSION REASON_FAILURE_MESSAGE "install libdeflate-dev, or name its prefix by CMAKE_PREFIX_PATH")
mark_as_advanced(Libdeflate_INCLUDE_DIR Libdeflate_LIBRARY)
if(Libdeflate_FOUND AND NOT TARGET Libdeflate::Libdeflate)
  add_library(Libdeflate::Libdeflate UNKNOWN IMPORTED)
  set_target_properties(Libdeflate::Libdeflate PROPERTIES
    IMPORTED_LOCATION ${Libdeflate_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${Libdeflate_INCLUDE_DIR})
endif()
