# Build rules that every folder shares: warnings, sanitizers, ccache, heddle_library, heddle_test.

find_program(HEDDLE_CCACHE ccache)
if(HEDDLE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${HEDDLE_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${HEDDLE_CCACHE})
endif()

find_package(Threads REQUIRED)
find_package(absl REQUIRED)

add_library(heddle_flags INTERFACE)
target_include_directories(heddle_flags INTERFACE ${PROJECT_SOURCE_DIR})
set(heddle_warnings -Wall -Wextra -Wshadow
    # Designated initialisers leave out what has a default.
    -Wno-missing-field-initializers)
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # GCC takes a source that is included by another for a header, where a public type with members of
  # an unnamed namespace would be a mistake.
  list(APPEND heddle_warnings -Wno-subobject-linkage)
endif()
if(HEDDLE_WERROR)
  list(APPEND heddle_warnings -Werror)
endif()
# nvcc has options of its own: kernels/cuda/CMakeLists.txt.
target_compile_options(heddle_flags INTERFACE
                       "$<$<COMPILE_LANGUAGE:CXX>:${heddle_warnings};-fno-math-errno>")
# Messages name sources below the checkout; the program is the same wherever that lies.
target_compile_options(heddle_flags INTERFACE
                       "$<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>")
if(HEDDLE_SANITIZE)
  target_compile_options(heddle_flags INTERFACE -fsanitize=${HEDDLE_SANITIZE}
                                                -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(heddle_flags INTERFACE -fsanitize=${HEDDLE_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # GCC 12's instrumentation makes it see uninitialised values in library headers (std::regex,
    # boost::optional); -Wtsan complains of Asio's fences, which the thread sanitizer does not model.
    target_compile_options(heddle_flags INTERFACE -Wno-maybe-uninitialized -Wno-tsan)
  endif()
endif()

# Flags that make a mistake in memory harder to use: docs/security.md. Not in the arithmetic of
# kernels/CMakeLists.txt, which is read by no attacker and runs in every step's inner loops.
set(heddle_hardening -fPIE -fstack-protector-strong -fstack-clash-protection -D_GLIBCXX_ASSERTIONS)
set(heddle_no_hardening -fno-stack-protector -fno-stack-clash-protection -U_GLIBCXX_ASSERTIONS
    -U_FORTIFY_SOURCE)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND heddle_hardening -fcf-protection)
  list(APPEND heddle_no_hardening -fcf-protection=none)
endif()
if(NOT HEDDLE_SANITIZE)  # The sanitizers check the same calls themselves.
  # The C library can check only where the compiler has worked out sizes, so not in debug builds.
  list(APPEND heddle_hardening
       "$<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE>"
       "$<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=2>")
endif()
target_compile_options(heddle_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${heddle_hardening}>")
target_link_options(heddle_flags INTERFACE -pie -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)

# heddle_library(NAME SOURCES a.cc ... LIBS public libraries ... PRIVATE_LIBS ...)
# Without SOURCES it is an interface library (headers only).
function(heddle_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS;PRIVATE_LIBS" ${ARGN})
  if(ARG_SOURCES)
    add_library(${name} STATIC ${ARG_SOURCES})
    target_link_libraries(${name} PUBLIC heddle_flags ${ARG_LIBS} PRIVATE ${ARG_PRIVATE_LIBS})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE heddle_flags ${ARG_LIBS})
  endif()
endfunction()

# heddle_cold(NAME...): code that runs once, or beside a human, is not worth -O3, which takes a quarter
# of the time to compile it (docs/building.md).
function(heddle_cold)
  if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
    foreach(name IN LISTS ARGN)
      target_compile_options(${name} PRIVATE
                             $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
    endforeach()
  endif()
endfunction()

# heddle_together(NAME...): compiles the sources of what tests/ makes as units, where the preset does so
# for the program. A dozen to a unit: headers take half of a test's time to compile, and two cores are
# to end together.
function(heddle_together)
  set_target_properties(${ARGN} PROPERTIES UNITY_BUILD ${HEDDLE_UNITY_TESTS}
                                           UNITY_BUILD_BATCH_SIZE 12)
endfunction()

# Sets `result` to the environment of every test: where the checkout and the build are, and options
# of the sanitizer that it was built with.
function(heddle_test_environment result)
  set(environment "HEDDLE_SOURCE_DIR=${PROJECT_SOURCE_DIR}" "HEDDLE_BINARY_DIR=${CMAKE_BINARY_DIR}")
  if(HEDDLE_SANITIZE MATCHES address)
    # AddressSanitizer reads all the rest of a text at each memmem, which makes replacing quadratic.
    list(APPEND environment "ASAN_OPTIONS=intercept_memmem=0"
         "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/leaks.supp")
  elseif(HEDDLE_SANITIZE MATCHES thread)
    list(APPEND environment "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/races.supp")
  endif()
  set(${result} "${environment}" PARENT_SCOPE)
endfunction()

# heddle_test(NAME SOURCES a_test.cc ... LIBS ... LABELS unit|kernel|golden|conformance|load|gpu)
# One Catch2 program per call, one ctest entry. Exit code 77 means skipped. The environment
# names the checkout and the shared test data, which tests find through tests/support/paths.h. LONG: it
# runs with tests/run.sh --long alone, every night. MORE: every night it runs once more, as NAME_long with
# HEDDLE_LONG_TESTS, for the cases that tests/support/long_runs.h leaves out otherwise. Presets with unity
# builds compile its sources together.
function(heddle_test name)
  cmake_parse_arguments(ARG "LONG;MORE" "TIMEOUT" "SOURCES;LIBS;LABELS;ARGS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE heddle_test_main heddle_flags ${ARG_LIBS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  heddle_together(${name})
  set(when)
  if(ARG_LONG)
    set(when CONFIGURATIONS Long)
  endif()
  add_test(NAME ${name} ${when} COMMAND ${name} ${ARG_ARGS})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  heddle_test_environment(environment)
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT ${ARG_TIMEOUT}
                       LABELS "${ARG_LABELS}" ENVIRONMENT "${environment}")
  if(ARG_MORE)
    add_test(NAME ${name}_long CONFIGURATIONS Long COMMAND ${name} ${ARG_ARGS})
    set_tests_properties(${name}_long PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 900
                         LABELS "${ARG_LABELS}" ENVIRONMENT "${environment};HEDDLE_LONG_TESTS=1")
  endif()
endfunction()
