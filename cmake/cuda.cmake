# Decides whether the CUDA backend is built, once: sets HEDDLE_HAS_CUDA, and HEDDLE_HAS_PTX if what is
# built holds PTX beside machine code; enables the language.

set(HEDDLE_HAS_CUDA FALSE)
set(HEDDLE_HAS_PTX FALSE)
option(HEDDLE_PTX "With tests and code for sm_90a: embed its PTX, which tests/gpu/ptx runs" ON)
if(HEDDLE_TESTS AND HEDDLE_PTX)
  # The architecture that tests/gpu/ptx is compiled for.
  include(CheckCXXSourceRuns)
  check_cxx_source_runs([[
    int main() {
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c") ? 0 : 1;
    }]] HEDDLE_RUNS_PTX)
endif()
set(heddle_gpus "")
if(HEDDLE_CUDA STREQUAL "AUTO")
  heddle_find_gpus(heddle_gpus)
endif()
if(HEDDLE_CUDA STREQUAL "OFF")
  message(STATUS "CPU only: HEDDLE_CUDA is OFF")
elseif(HEDDLE_CUDA STREQUAL "AUTO" AND NOT heddle_gpus)
  message(STATUS "CPU only: no NVIDIA GPU of compute capability 8.0 or later is here; "
                 "-DHEDDLE_CUDA=ON compiles for those of other machines")
elseif(HEDDLE_CUDA STREQUAL "ON" OR HEDDLE_CUDA STREQUAL "AUTO")
  # Looks where the toolkit usually lies, too: its bin folder is often not in PATH.
  find_program(HEDDLE_NVCC nvcc PATHS /usr/local/cuda/bin ENV CUDA_PATH PATH_SUFFIXES bin)
  if(HEDDLE_NVCC)
    if(NOT CMAKE_CUDA_COMPILER)
      set(CMAKE_CUDA_COMPILER ${HEDDLE_NVCC})
    endif()
    # Machine code for these only, no PTX: "90a" becomes 90a-real.
    list(TRANSFORM HEDDLE_CUDA_ARCHITECTURES APPEND "-real"
         OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)
    if(HEDDLE_RUNS_PTX AND HEDDLE_TESTS AND HEDDLE_PTX AND
       "90a" IN_LIST HEDDLE_CUDA_ARCHITECTURES)
      set(HEDDLE_HAS_PTX TRUE)
      list(TRANSFORM CMAKE_CUDA_ARCHITECTURES REPLACE "^90a-real$" "90a")
      add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:--no-compress>)
    endif()
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    enable_language(CUDA)
    # CMake 3.25 knows newer nvcc's dialects only where its table of host compilers does.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    endif()
    set(HEDDLE_HAS_CUDA TRUE)
    message(STATUS "CUDA ${CMAKE_CUDA_COMPILER_VERSION} for ${HEDDLE_CUDA_ARCHITECTURES}")
  elseif(HEDDLE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "HEDDLE_CUDA is ON, but nvcc was not found in PATH, in CUDA_PATH/bin or in "
                        "/usr/local/cuda/bin. Install the CUDA toolkit, or set CMAKE_CUDA_COMPILER "
                        "or HEDDLE_NVCC to its nvcc.")
  else()
    message(STATUS "CPU only: nvcc was not found")
  endif()
else()
  message(FATAL_ERROR "HEDDLE_CUDA is \"${HEDDLE_CUDA}\"; valid are AUTO, ON and OFF")
endif()
