# Install rules: headers, static libraries, the CMake package `fdma` (find_package), the tool with its man page and
# shell completions. tests/install builds and runs a program against an installed tree.
include(CMakePackageConfigHelpers)

set(libraries fdma_base fdma_formats fdma_io fdma_select fdma_masks fdma_kernels)
install(TARGETS ${libraries} fdma EXPORT fdma-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(library ${libraries})
  get_target_property(include_dir ${library} FDMA_INCLUDE_DIR)
  install(DIRECTORY ${include_dir}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING
    PATTERN "*.hpp" PATTERN "*.def")
endforeach()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/fdma)
install(EXPORT fdma-targets NAMESPACE fdma:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/fdma-config.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/fdma-config.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/fdma-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/fdma-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/fdma-config-version.cmake
  DESTINATION ${package_dir})
install(FILES ${CMAKE_CURRENT_LIST_DIR}/FindLibdeflate.cmake DESTINATION ${package_dir})
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

if(TARGET fdma-maskc)
  install(TARGETS fdma-maskc RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/tools/share/ DESTINATION ${CMAKE_INSTALL_DATADIR})
  # The pages of the tool, as `fdma-maskc help` prints them, and what they link to.
  install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs FILES_MATCHING PATTERN "*.md" PATTERN "*.json"
    PATTERN "*.png" PATTERN "notes" EXCLUDE PATTERN "api" EXCLUDE PATTERN "developing" EXCLUDE)
endif()
