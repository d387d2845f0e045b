# cmake -D OUTPUT=<file.cpp> -D HEADER=<file.hpp> -D NAMESPACE=<namespace> -D FOLDER=<folder>
#   -D TEXTS="<name>=<file in folder> .." -P embed_text.cmake
#
# Writes a source file that defines, for each <name>=<file>, the constant std::string_view <name> (declared in HEADER)
# with the text of that file, in raw string literals. A missing file, or one that holds the literal's end mark, is an
# error.
separate_arguments(TEXTS)
set(content "// Made by cmake/embed_text.cmake from the files named below.\n#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\n")
foreach(text IN LISTS TEXTS)
  string(REGEX MATCH "^([^=]+)=(.+)$" matched "${text}")
  set(name "${CMAKE_MATCH_1}")
  set(file "${CMAKE_MATCH_2}")
  file(READ "${FOLDER}/${file}" body)
  string(FIND "${body}" ")embedded\"" mark)
  if(NOT mark EQUAL -1)
    message(FATAL_ERROR "${file}: holds the end mark of a raw string, )embedded\"")
  endif()
  string(APPEND content "\n// ${file}\nconst std::string_view ${name} = R\"embedded(${body})embedded\";\n")
endforeach()
string(APPEND content "\n}  // namespace ${NAMESPACE}\n")
file(WRITE "${OUTPUT}" "${content}")
