# The sources of the core, which the module and the tests without Python compile each their way;
# `phases*.cpp`, a file for each few kinds of phases, beside these. Kernels, which are compiled once per
# instruction set, are not among them.
set(core_sources choose delta_states delta_step dispatch edit_tracker elementwise exchange executor
                 expert_cache file_reader guide heads_drafter kept kv_cache leader links logit_scan
                 model_drafter pass_cost quantize repack routing speculation suffix_drafter
                 suffix_index walk worker_rows)
list(TRANSFORM core_sources PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM core_sources APPEND .cpp)
file(GLOB phases CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/phases*.cpp)
list(APPEND core_sources ${phases})
