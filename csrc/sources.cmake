# The sources of the core, room by room, which the module and the tests without Python compile each
# their way. `kernels/sets` is compiled once per instruction set, and `bind` is Python's: neither is
# among them.
set(core_sources)
foreach(room kernels kernels/products memory ranks state sample draft experts ops run)
  file(GLOB found CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/${room}/*.cpp)
  list(APPEND core_sources ${found})
  string(REPLACE / _ group ${room})
  set_source_files_properties(${found} PROPERTIES UNITY_GROUP ${group})
endforeach()
# And a set of kernels, which takes longest first.
set(set_sources attention.cpp panels.cpp kernels.cpp)

# The instruction sets beyond the portable one that this processor runs, the best one last; all of
# them where it does not say. A set that is left out is an empty table (kernels/sets/absent.cpp).
set(x86_sets avx2 avx512 avx512bf16 amx)
set(runnable_sets ${x86_sets})
if(EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo processor REGEX "^flags" LIMIT_COUNT 1)
  set(runnable_sets)
  if(processor MATCHES " avx2( |$)" AND processor MATCHES " fma( |$)")
    list(APPEND runnable_sets avx2)
  endif()
  if(processor MATCHES " avx512_vnni( |$)")
    list(APPEND runnable_sets avx512)
  endif()
  if(processor MATCHES " avx512_bf16( |$)")
    list(APPEND runnable_sets avx512bf16)
    if(processor MATCHES " amx_tile .*amx_int8( |$)")
      list(APPEND runnable_sets amx)
    endif()
  endif()
endif()
set(sets_folder ${CMAKE_CURRENT_LIST_DIR}/kernels/sets)
