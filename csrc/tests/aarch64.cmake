# Debian's cross compiler (g++-aarch64-linux-gnu), whose programs qemu-user runs:
# tests/cpu/test_arm.py.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
