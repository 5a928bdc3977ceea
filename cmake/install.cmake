# Files of `cmake --install` and of packages (cmake/package.cmake), below CMAKE_INSTALL_PREFIX:
#
#   bin/heddle
#   share/heddle/demo-model/                 `heddle serve demo` looks for it from bin/
#   share/man/man1/heddle*.1.gz              written by the program from its table of options
#   share/{bash-completion,zsh,fish}/...     likewise
#   share/doc/heddle/                        the pages of docs/, with examples/
#   lib/systemd/system/heddle.service        prefixes /usr and /usr/local only, with
#   /etc/heddle/heddle.yaml                  unless there is one
include(GNUInstallDirs)

# Building the tests is not asked of whoever installs from a developer's build folder.
if(HEDDLE_TESTS)
  set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)
endif()

install(TARGETS heddle RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY share/demo-model DESTINATION ${CMAKE_INSTALL_DATADIR}/heddle)
file(GLOB pages docs/*.md)
install(FILES README.md CHANGELOG.md ${pages} DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES deploy/systemd/gpu.conf DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)

set(written ${CMAKE_BINARY_DIR}/written)
add_custom_command(
  OUTPUT ${written}/done
  COMMAND ${CMAKE_COMMAND} -DHEDDLE=$<TARGET_FILE:heddle> -DFOLDER=${written}
          -P ${PROJECT_SOURCE_DIR}/cmake/write_pages.cmake
  DEPENDS heddle ${PROJECT_SOURCE_DIR}/cmake/write_pages.cmake
  COMMENT "Writing manual pages and completions")
add_custom_target(heddle_pages ALL DEPENDS ${written}/done)

install(DIRECTORY ${written}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR})
install(FILES ${written}/heddle.bash RENAME heddle
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${written}/heddle.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
install(FILES ${written}/_heddle DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)

# Files that depend on the prefix that `cmake --install --prefix` or CPack chooses.
install(CODE "set(HEDDLE_SYSTEMD ${PROJECT_SOURCE_DIR}/deploy/systemd)
set(HEDDLE_WRITTEN ${written})
set(HEDDLE_DOC ${CMAKE_INSTALL_DOCDIR})")
install(SCRIPT cmake/install_service.cmake)
