# `cpack --config build/CPackConfig.cmake`: heddle_VERSION_amd64.deb and a tarball. docs/deployment.md
# says how to use them, deploy/debian/ has the maintainer scripts, cmake/debian.cmake what Debian's
# policy adds.
set(HEDDLE_MAINTAINER "The authors of Heddle <heddle@packages.invalid>" CACHE STRING
    "Who answers for packages: NAME <ADDRESS>")

set(CPACK_GENERATOR "DEB;TGZ")
# Beside a program with CUDA in it there can be none without.
set(CPACK_PACKAGE_NAME heddle)
if(HEDDLE_HAS_CUDA)
  set(CPACK_PACKAGE_NAME heddle-cuda)
  set(CPACK_DEBIAN_PACKAGE_PROVIDES heddle)
  set(CPACK_DEBIAN_PACKAGE_CONFLICTS heddle)
  set(CPACK_DEBIAN_PACKAGE_REPLACES heddle)
endif()
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_VENDOR Heddle)
set(CPACK_PACKAGE_CONTACT ${HEDDLE_MAINTAINER})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "server of large language models")
set(CPACK_PACKAGE_FILE_NAME ${CPACK_PACKAGE_NAME}-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS ${CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS})

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Loaded at run time, for ranks in other processes.
set(CPACK_DEBIAN_PACKAGE_SUGGESTS libucx0)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "\
Heddle loads a language model from disk, a Hugging Face folder or a GGUF
file, and answers clients of OpenAI's and Anthropic's APIs over HTTP and
gRPC, many at a time, with continuous batching and a paged cache of keys
and values.
.
A small model comes along: heddle serve demo")
set(debian ${PROJECT_SOURCE_DIR}/deploy/debian)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
    ${debian}/conffiles ${debian}/postinst ${debian}/postrm ${debian}/prerm)

set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/package_kinds.cmake)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/debian.cmake)
# For cmake/debian.cmake.
set(CPACK_HEDDLE_SOURCE ${PROJECT_SOURCE_DIR})
set(CPACK_HEDDLE_DOC ${CMAKE_INSTALL_DOCDIR})
include(CPack)
