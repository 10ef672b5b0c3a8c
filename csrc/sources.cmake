# The sources of the core, room by room, which the module and the tests without Python compile each
# their way. `kernels/sets` is compiled once per instruction set, and `bind` is Python's: neither is
# among them.
set(core_sources)
foreach(room kernels kernels/products memory ranks state sample draft experts ops run)
  file(GLOB found CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/${room}/*.cpp)
  list(APPEND core_sources ${found})
endforeach()
