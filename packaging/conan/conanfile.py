"""Conan 2 recipe: conan create packaging/conan (docs/install.md).

Libraries that sherd links are the distribution's, installed by scripts/install_deps.sh where Conan may install system packages
(-c tools.system.package_manager:mode=install).
"""

import os
import re

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load

FOLDERS = ("adapters", "base", "checkpoint", "cmake", "comm", "dtensor", "fsdp", "include", "kernels", "nn", "optim", "packaging", "train")


class Sherd(ConanFile):
    name = "sherd"
    package_type = "library"
    description = "Sharded training runtime for C++ models"
    license = "Apache-2.0"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "mpi": [True, False]}
    default_options = {"shared": False, "mpi": False}

    @property
    def _root(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        text = load(self, os.path.join(self._root, "CMakeLists.txt"))
        self.version = re.search(r"project\(sherd VERSION ([0-9.]+)", text)[1]

    def export(self):
        copy(self, "install_deps.sh", os.path.join(self._root, "scripts"), self.export_folder)

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", *(f"{folder}/*" for folder in FOLDERS)):
            copy(self, pattern, self._root, self.export_sources_folder)

    def system_requirements(self):
        if self.conf.get("tools.system.package_manager:mode") == "install":
            self.run(f"bash {os.path.join(self.recipe_folder, 'install_deps.sh')}")

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for name in ("TESTS", "SAMPLES", "BENCH", "TOOLS", "CUDA", "WERROR"):
            toolchain.cache_variables[f"SHERD_{name}"] = False
        toolchain.cache_variables["SHERD_MPI"] = bool(self.options.mpi)
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        CMake(self).install()

    def package_info(self):
        # find_package(sherd) finds the package's own file.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["lib/cmake/sherd"]
