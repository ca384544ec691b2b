# Overlay port of this tree: vcpkg install sherd --overlay-ports=packaging/vcpkg/ports (docs/install.md).
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../../.." ABSOLUTE)

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    -DSHERD_TESTS=OFF
    -DSHERD_SAMPLES=OFF
    -DSHERD_BENCH=OFF
    -DSHERD_TOOLS=OFF
    -DSHERD_CUDA=OFF
    -DSHERD_MPI=OFF
    -DSHERD_WERROR=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/sherd)
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
