"""Builds the first sample with the package and compares what it prints."""

import os

from conan import ConanFile
from conan.errors import ConanException
from conan.tools.build import can_run
from conan.tools.cmake import CMake, cmake_layout


class Test(ConanFile):
    settings = "os", "arch", "compiler", "build_type"
    generators = "CMakeToolchain", "VirtualRunEnv"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def test(self):
        if not can_run(self):
            return
        with open(os.path.join(self.recipe_folder, "../../../samples/01_first/expected_output.txt")) as file:
            expected = file.read()
        self.run(os.path.join(self.cpp.build.bindir, "first") + " > output.txt", env="conanrun")
        with open("output.txt") as file:
            if file.read() != expected:
                raise ConanException("samples/01_first prints something else than its expected_output.txt")
