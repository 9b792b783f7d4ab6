"""The core imports torch and the standard library, nothing else of its own accord."""

import ast
import subprocess
import sys

from tests.support import REPOSITORY

HEAVY = ("timm", "fairseq", "transformers", "scipy", "sklearn", "pandas", "matplotlib", "torchvision", "sot_text")


def test_nothing_heavy_is_imported():
    code = f"import sys, sot_core; print(sorted({set(HEAVY)!r} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_source_names_only_torch_the_standard_library_and_itself():
    allowed = {*sys.stdlib_module_names, "torch", "sot_core"}
    for path in sorted((REPOSITORY / "sot_core").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path.name} has a relative import"
                names = [node.module]
            assert {name.split(".")[0] for name in names} <= allowed, path.name


def test_every_public_name_is_documented():
    import sot_core

    for name in sot_core.__all__:
        assert getattr(sot_core, name).__doc__, name
