# The sources of the CUDA backend, for the folder that includes this: the device's build
# (kernels/cuda) and the emulated one (tests/emulate).
set(heddle_cuda_host_sources
  adapter_products.cc
  code_products.cc
  cuda_device.cc
  cuda_device_steps.cc
  cuda_limits.cc
  cuda_ops.cc
  cuda_ops_experts.cc
  cuda_ops_halves.cc
  cuda_ops_latent.cc
  cuda_ops_select.cc
  cuda_ops_state.cc
  cuda_ops_streams.cc
  linear_products.cc
  nano_split.cc
  planned_attention.cc
  split_ops.cc
  staged_batch.cc
  attention/attention_choice.cc
  attention/attention_pieces.cc
  attention/attention_plan.cc
  attention/context_pieces.cc
  attention/shared_prefixes.cc
  attention/wide_pages.cc
  linear/cuda_weight.cc
  linear/linear_choice.cc
  linear/linear_ways.cc
  linear/pack_row.cc
  ranks/apart_communicator.cc
  ranks/host_relay.cc
  ranks/nccl_group.cc
  ranks/nccl_library.cc
  ranks/nccl_link.cc
  ranks/nccl_ops.cc
  ranks/peer_group.cc
  ranks/rank_choice.cc
  ranks/rank_ops.cc
  runtime/graph_cache.cc
  runtime/runtime_messages.cc
  runtime/staging.cc
  runtime/trial_timer.cc)
set(heddle_cuda_kernel_sources
  attention/attention_expand.cu
  attention/attention_flash_16.cu
  attention/attention_flash_8.cu
  attention/attention_halves.cu
  attention/attention_hopper_bf16.cu
  attention/attention_hopper_expanded.cu
  attention/attention_hopper_f16.cu
  attention/attention_hopper_f8.cu
  attention/attention_latent.cu
  attention/attention_merge.cu
  attention/attention_plain.cu
  attention/attention_turns.cu
  attention/attention_wide.cu
  attention/attention_widen.cu
  attention/rope.cu
  attention/select_places.cu
  attention/select_scores.cu
  linear/adapters.cu
  linear/experts.cu
  linear/linear_bulk.cu
  linear/linear_bulk_8.cu
  linear/linear_bulk_experts.cu
  linear/linear_epilogue.cu
  linear/linear_mixed_4.cu
  linear/linear_mixed_8.cu
  linear/linear_mixed_float.cu
  linear/linear_plain.cu
  linear/linear_skinny_4.cu
  linear/linear_skinny_8.cu
  linear/linear_skinny_float.cu
  linear/linear_tiled.cu
  ranks/gather_columns.cu
  ranks/stage_rows.cu
  ranks/sum_ranks.cu
  rows/elements.cu
  rows/norm.cu
  rows/norm_codes.cu
  rows/quantize.cu
  rows/rows.cu
  rows/streams.cu
  sample/sample.cu
  state/recurrence_end.cu
  state/recurrence_scan.cu
  state/selective.cu
  state/short_conv.cu
  state/time_mix.cu
  state/token_shift.cu)
foreach(list heddle_cuda_host_sources heddle_cuda_kernel_sources)
  list(TRANSFORM ${list} PREPEND ${PROJECT_SOURCE_DIR}/kernels/cuda/)
endforeach()

# State kernels fuse products and sums where they say so alone (primitives/fused.cuh): the bits of a row are
# the same wherever a compiler puts the code. The emulated build fuses nothing by itself.
foreach(kernel ${heddle_cuda_kernel_sources})
  if(kernel MATCHES "/kernels/cuda/state/")
    set_source_files_properties(${kernel} PROPERTIES COMPILE_OPTIONS
                                "$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false>")
  endif()
endforeach()

# Has names that a header of its neighbours has, too.
set_source_files_properties(${PROJECT_SOURCE_DIR}/kernels/cuda/linear/cuda_weight.cc
                            PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
