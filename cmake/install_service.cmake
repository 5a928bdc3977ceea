# Part of cmake_install.cmake (cmake/install.cmake): the service. Where systemd would not find it,
# unit and configuration are examples.
set(unit_folder "")
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  set(unit_folder /lib/systemd/system)
elseif(CMAKE_INSTALL_PREFIX STREQUAL "/usr/local")
  set(unit_folder /usr/local/lib/systemd/system)
endif()

if(unit_folder)
  file(READ ${HEDDLE_SYSTEMD}/heddle.service unit)
  # Its head says how to install it.
  string(REGEX REPLACE "^#.*\n\\[Unit\\]" "[Unit]" unit "${unit}")
  string(REPLACE "/usr/local/bin/" "${CMAKE_INSTALL_PREFIX}/bin/" unit "${unit}")
  file(WRITE ${HEDDLE_WRITTEN}/heddle.service "${unit}")
  file(INSTALL DESTINATION ${unit_folder} TYPE FILE FILES ${HEDDLE_WRITTEN}/heddle.service)
  # Files that an administrator has written there stay.
  if(NOT EXISTS $ENV{DESTDIR}/etc/heddle/heddle.yaml)
    file(INSTALL DESTINATION /etc/heddle TYPE FILE FILES ${HEDDLE_SYSTEMD}/heddle.yaml)
  endif()
else()
  file(INSTALL DESTINATION ${CMAKE_INSTALL_PREFIX}/${HEDDLE_DOC}/examples TYPE FILE
       FILES ${HEDDLE_SYSTEMD}/heddle.service ${HEDDLE_SYSTEMD}/heddle.yaml)
endif()
