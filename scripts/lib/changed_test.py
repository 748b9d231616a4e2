"""Tests of changed.py: what a step reads, and which steps are left out. Their repository is a
table of texts."""
import unittest

import changed
from changed import Package, Repository, closure, files_in_places, files_of_step, files_of_tests, fingerprint, left_out, places_in, skips

FILES = {
    "Cargo.toml": "",
    "README.md": "",
    "scripts/test": "scripts/lib/page-check",
    "scripts/lib/clients": "cargo_build vgpu; run tests/clients/run.py # see docs/memory.md.",
    "scripts/lib/page-check": 'require("./pages/common")',
    "scripts/lib/prometheus-check": "awk docs/metrics.md; python3 scripts/lib/prometheus_check.py",
    "scripts/lib/prometheus_check.py": "import shared\n",
    "scripts/lib/shared.py": "",
    "docs/memory.md": "",
    "docs/metrics.md": "",
    "docs/other.md": "",
    "tests/vectors/a/one.json": "",
    "tests/vectors/b/two.json": "",
    "tests/Cargo.toml": "",
    "tests/preload/main.rs": "",
    "tests/clients/run.py": "",
    "low/Cargo.toml": "",
    "low/src/lib.rs": 'include_str!("../../tests/vectors/a/one.json")',
    "low/tests/all.rs": 'include_str!("../../docs/metrics.md")',
    "low/inner/Cargo.toml": "",
    "low/inner/src/lib.rs": "",
    "vgpu/Cargo.toml": "",
    "vgpu/src/main.rs": "",
    "vgpu/tests/all.rs": "",
}
PACKAGES = {
    "tests": Package("tests", frozenset(), frozenset({"low"})),
    "low": Package("low", frozenset(), frozenset({"inner"})),
    "inner": Package("low/inner", frozenset(), frozenset()),
    "vgpu": Package("vgpu", frozenset({"low"}), frozenset()),
    "cluster-tests": Package("tests/cluster", frozenset(), frozenset()),
    **{
        name: Package(f"other/{name}", frozenset(), frozenset())
        for name in ("vgpu-core", "vgpu-monitor", "scheduler", "webhook", *changed.DRIVER)
    },
}


def repository(**other):
    files = {**FILES, **{name.replace("__", "."): text for name, text in other.items()}}
    return Repository({name: f"hash of {text}" for name, text in files.items()}, PACKAGES, files.__getitem__)


class Places(unittest.TestCase):
    def test_rust_names_files_in_literals_and_not_in_comments(self):
        text = '// as in docs/other.md\nlet a = include_str!("../../docs/metrics.md"); let q = \'"\'; f("charts/vgpu/values.yaml");'
        self.assertEqual(places_in("a/src/b.rs", text, ["low"]), {"docs/metrics.md", "charts/vgpu/values.yaml"})

    def test_a_quoted_folder_is_the_whole_folder(self):
        self.assertEqual(places_in("a/b.rs", 'root.join("docs").join(name)', []), {"docs/"})
        self.assertEqual(places_in("scripts/b.py", "ROOT / 'charts' / name", []), {"charts/"})
        self.assertEqual(places_in("a/b.rs", 'tests.join("../include")', []), {"include/"})

    def test_a_path_ends_where_a_name_is_filled_in(self):
        self.assertEqual(places_in("a/b.rs", '"{}/../tests/vectors/a/{name}"', ["tests"]), {"tests/vectors/a/"})

    def test_a_package_is_named_by_a_path_and_not_by_a_word(self):
        self.assertEqual(places_in("a/b.rs", '"low" "low/src/x.rs"', ["low"]), {"low/src/x.rs"})

    def test_scripts_name_files_anywhere_and_python_by_imports(self):
        self.assertEqual(places_in("scripts/x", "# reads docs/a.md.\ncp low/tests/c.c .", ["low"]), {"docs/a.md", "low/tests/c.c"})
        self.assertEqual(places_in("scripts/lib/x.py", "from one import two\n", []), {"scripts/lib/one.py"})


class Inputs(unittest.TestCase):
    def test_closure_takes_what_tests_need_of_the_tested_package_alone(self):
        self.assertEqual(closure(PACKAGES, ["vgpu"], []), {"vgpu", "low"})
        self.assertEqual(closure(PACKAGES, [], ["tests"]), {"tests", "low"})
        self.assertEqual(closure(PACKAGES, [], ["low"]), {"low", "inner"})

    def test_a_step_without_an_entry_reads_every_file(self):
        self.assertEqual(files_of_step(repository(), "check"), set(FILES))

    def test_a_node_in_debians_linux_reads_everything_but_pages_for_people(self):
        left = set(FILES) - files_of_step(repository(), "groups2")
        self.assertEqual(left, {"README.md", "docs/memory.md", "docs/metrics.md", "docs/other.md"})

    def test_a_cluster_reads_programs_the_chart_and_its_own_tests(self):
        more = {"charts/vgpu/values.yaml": "", "tests/cluster/node/main.rs": "", "scripts/cluster": "scripts/lib/shared.py"}
        found = files_of_step(repository(**more), "cluster")
        self.assertLessEqual({*more, "vgpu/src/main.rs", "low/src/lib.rs", "scripts/lib/shared.py"}, found)
        self.assertFalse({"vgpu/tests/all.rs", "low/tests/all.rs", "scripts/lib/page-check", "docs/other.md"} & found)

    def test_nodes_read_the_library_and_clusters_without_containers_do_not(self):
        library = {"other/vgpu-core/src/lib.rs": ""}
        self.assertLessEqual(set(library), files_of_step(repository(**library), "node"))
        self.assertFalse(set(library) & files_of_step(repository(**library), "cluster"))

    def test_unit_tests_of_a_package_are_read_where_it_is_tested(self):
        units = {"low/src/rules/tests.rs": "", "low/src/rules/tests/more.rs": "", "low/src/testsuite.rs": ""}
        self.assertEqual(set(units) & files_of_tests(repository(**units), "low", ""), set(units))
        self.assertEqual(set(units) & files_of_tests(repository(**units), "vgpu", ""), {"low/src/testsuite.rs"})

    def test_clients_read_programs_scripts_and_what_these_name(self):
        read = files_of_step(repository(), "clients")
        for file in ("vgpu/src/main.rs", "low/src/lib.rs", "tests/vectors/a/one.json", "tests/clients/run.py", "docs/memory.md",
                     "scripts/test", "tests/Cargo.toml"):
            self.assertIn(file, read)
        for file in ("vgpu/tests/all.rs", "low/tests/all.rs", "tests/preload/main.rs", "docs/metrics.md", "README.md",
                     "tests/vectors/b/two.json", "low/inner/src/lib.rs"):
            self.assertNotIn(file, read)

    def test_scripts_are_followed_from_one_to_the_next(self):
        read = files_in_places(repository(), ["scripts/lib/prometheus-check"], True)
        self.assertEqual(read, {"scripts/lib/prometheus-check", "scripts/lib/prometheus_check.py", "scripts/lib/shared.py",
                                "docs/metrics.md"})

    def test_a_script_of_the_harness_is_not_followed(self):
        self.assertEqual(files_in_places(repository(), ["scripts/test"], True), {"scripts/test"})

    def test_tests_of_a_package_read_its_tests_and_the_files_that_they_name(self):
        read = files_of_tests(repository(), "low", "all")
        for file in ("low/tests/all.rs", "docs/metrics.md", "tests/vectors/a/one.json", "low/inner/src/lib.rs", "Cargo.toml"):
            self.assertIn(file, read)
        for file in ("vgpu/src/main.rs", "docs/other.md", "tests/preload/main.rs", "README.md"):
            self.assertNotIn(file, read)

    def test_files_of_another_package_that_are_built_into_tests_are_followed(self):
        more = {"low/tests/main.rs": '#[path = "../../tests/support/mod.rs"]', "tests/support/mod.rs": '"/../tests/preload"'}
        read = files_of_tests(repository(**more), "low", "all")
        self.assertLessEqual({"tests/support/mod.rs", "tests/preload/main.rs"}, read)

    def test_tests_of_another_package_do_not_read_these_tests(self):
        self.assertNotIn("low/tests/all.rs", files_of_tests(repository(), "tests", "preload"))

    def test_unknown_packages_and_tests_of_the_whole_repository_read_every_file(self):
        for package, program in (("", "rustdoc"), ("tests", "crate_graph"), ("xtask", "xtask")):
            self.assertEqual(files_of_tests(repository(), package, program), set(FILES))


class Fingerprints(unittest.TestCase):
    def of(self, here, files=FILES, around=("rustc 1",)):
        return fingerprint(here, files, list(around))

    def test_contents_names_and_surroundings_count(self):
        first = self.of(repository())
        self.assertEqual(first, self.of(repository()))
        self.assertNotEqual(first, self.of(repository(README__md="changed")))
        self.assertNotEqual(first, self.of(repository(NEW__md=""), [*FILES, "NEW.md"]))
        self.assertNotEqual(first, self.of(repository(), set(FILES) - {"README.md"}))
        self.assertNotEqual(first, self.of(repository(), around=("rustc 2",)))

    def test_a_file_that_a_step_does_not_read_does_not_count(self):
        def of(here):
            return self.of(here, files_of_step(here, "clients"))
        self.assertEqual(of(repository()), of(repository(README__md="changed")))
        self.assertNotEqual(of(repository()), of(repository(**{"vgpu/src/main__rs": "changed"})))


class LeftOut(unittest.TestCase):
    def test_unchanged_steps_are_left_out(self):
        self.assertEqual(left_out(["shell", "build", "test"], {"shell", "build", "test"}), ["shell", "build", "test"])
        self.assertEqual(left_out(["shell", "test"], {"shell"}), ["shell"])

    def test_an_unchanged_build_runs_for_a_step_that_uses_it(self):
        self.assertEqual(left_out(["shell", "build", "test"], {"shell", "build"}), ["shell"])
        self.assertEqual(left_out(["shell", "build", "test"], {"build", "test"}), ["build", "test"])

    def test_every_step_of_the_table_is_a_step(self):
        text = (changed.ROOT / "scripts/test").read_text()
        for name in (*changed.STEPS, *changed.NEED_NO_BUILD, *changed.WITHOUT_PAGES, changed.BY_PROGRAM):
            self.assertIn(f"\nstep_{name}() {{", text)


class Skips(unittest.TestCase):
    def test_a_step_that_could_not_run_in_full_is_not_remembered(self):
        for text in ("skipped deny: cargo-deny is not installed", "ok\n  skipped: no go\n", "[ 0:01] skipped: no prometheus"):
            self.assertTrue(skips(text), text)
        self.assertFalse(skips("test is_skipped ... ok\n0 skipped"))


if __name__ == "__main__":
    unittest.main()
