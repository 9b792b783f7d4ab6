import sys
from importlib.util import find_spec

import pytest

from sot_base.later_import import import_later


@pytest.fixture
def slow(tmp_path, monkeypatch):
    """A library with a module."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "__init__.py").write_text("def one():\n    return 1\n")
    (tmp_path / "slow" / "part.py").write_text("LIMIT = 3\ndef double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("slow", "slow.part"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("slow")
def test_functions_import_their_library_when_called():
    with import_later("slow"):
        import slow
        from slow import one, part
        from slow.part import double
    assert not {"slow", "slow.part"} & set(sys.modules)
    assert double(2) == 4
    assert "slow.part" in sys.modules
    assert slow.one() == one() == 1
    assert part.LIMIT == 3

    from slow.part import double as real

    assert type(real).__name__ == "function"


@pytest.mark.usefixtures("slow")
def test_a_library_that_is_imported_is_used_as_it_is():
    import slow

    with import_later("slow"):
        import slow.part
        from slow import one
    assert one is slow.one
    assert slow.part.LIMIT == 3


def test_a_library_that_is_not_installed_is_not_found():
    with import_later("not_installed_anywhere"):
        assert find_spec("not_installed_anywhere") is None
        with pytest.raises(ImportError):
            import not_installed_anywhere  # noqa: F401
