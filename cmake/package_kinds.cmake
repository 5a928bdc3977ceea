# Read by cpack once for each kind of package: a .deb has files outside of its prefix, so that they
# are installed as `DESTDIR=... cmake --install --prefix /usr` would; a tarball has no place yet.
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_SET_DESTDIR ON)
  set(CPACK_INSTALL_PREFIX /usr)
endif()
