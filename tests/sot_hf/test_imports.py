import ast

from tests.support import REPOSITORY

OTHER_SIDES = {"sot_fairseq", "fairseq", "vision", "timm"}


def test_no_other_side_is_imported():
    files = sorted((REPOSITORY / "sot_hf").glob("*.py"))
    assert files
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path.name} has a relative import"
                names = [node.module]
            assert not {name.split(".")[0] for name in names} & OTHER_SIDES, path.name
