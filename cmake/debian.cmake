# Run by cpack when the files of a package are in place (CPACK_PRE_BUILD_SCRIPTS): what Debian's
# policy asks of a .deb.
if(NOT CPACK_GENERATOR STREQUAL "DEB")
  return()
endif()
set(root ${CPACK_TEMPORARY_DIRECTORY})
set(doc ${root}/usr/share/doc/${CPACK_PACKAGE_NAME})
if(NOT CPACK_PACKAGE_NAME STREQUAL "heddle")
  file(RENAME ${root}/usr/share/doc/heddle ${doc})
endif()

# zsh of Debian looks for completions of packages here.
file(MAKE_DIRECTORY ${root}/usr/share/zsh/vendor-completions)
file(RENAME ${root}/usr/share/zsh/site-functions/_heddle
     ${root}/usr/share/zsh/vendor-completions/_heddle)
file(REMOVE_RECURSE ${root}/usr/share/zsh/site-functions)

# The notices of libraries that are compiled in; Boost's licence does not ask for one.
file(READ ${CPACK_HEDDLE_SOURCE}/deploy/debian/copyright copyright)
foreach(library libcli11-dev nlohmann-json3-dev)
  set(notice /usr/share/doc/${library}/copyright)
  if(NOT EXISTS ${notice})
    message(FATAL_ERROR "${notice} is missing: the package needs it in its own copyright file")
  endif()
  file(READ ${notice} text)
  string(APPEND copyright "\n---- ${library}\n\n${text}")
endforeach()
file(WRITE ${doc}/copyright "${copyright}")

# The date of what is packed: the newest commit's, where nobody says otherwise.
set(time "$ENV{SOURCE_DATE_EPOCH}")
if("${time}" STREQUAL "")
  execute_process(COMMAND git -C ${CPACK_HEDDLE_SOURCE} log -1 --format=%ct OUTPUT_VARIABLE time
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT "${time}" STREQUAL "")
  set(ENV{SOURCE_DATE_EPOCH} ${time})
endif()
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(WRITE ${doc}/changelog "${CPACK_PACKAGE_NAME} (${CPACK_PACKAGE_VERSION}) stable; urgency=medium

  * Version ${CPACK_PACKAGE_VERSION}; CHANGELOG.md says what is new.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")
execute_process(COMMAND gzip -9nf ${doc}/changelog COMMAND_ERROR_IS_FATAL ANY)

# Modes whatever the umask of whoever builds.
file(GLOB_RECURSE files LIST_DIRECTORIES false ${root}/*)
foreach(file IN LISTS files)
  if(NOT file MATCHES "/bin/heddle$")
    file(CHMOD ${file} PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
  endif()
endforeach()

# The same sources make the same package.
if(NOT "${time}" STREQUAL "")
  execute_process(COMMAND find ${root} -exec touch -h -d @${time} {} + COMMAND_ERROR_IS_FATAL ANY)
endif()
