import sqlite3
from pathlib import Path

import pytest

from gdpfed.privacy import cache
from gdpfed.privacy.calibrate import noise_multiplier_for

CASE = {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1, "num_rounds": 10}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GDPFED_CACHE", str(tmp_path))
    cache.forget_memory()
    return tmp_path


@pytest.fixture
def counted() -> tuple[list[float], object]:
    calls: list[float] = []

    @cache.remembered
    def third(*, value: float) -> float:
        calls.append(value)
        return value / 3

    return calls, third


def calibrated() -> float:
    return noise_multiplier_for(**CASE)  # type: ignore[arg-type]


def test_same_bits(folder: Path) -> None:
    with cache.without_cache():
        fresh = calibrated()
    first = calibrated()
    from_memory = calibrated()
    cache.forget_memory()
    from_disk = calibrated()
    assert fresh.hex() == first.hex() == from_memory.hex() == from_disk.hex()
    assert (folder / "accounting.sqlite").is_file()


def test_disk_is_used_and_can_be_left_out(folder: Path, counted: tuple[list[float], object]) -> None:
    calls, third = counted
    assert third(value=0.1) == third(value=0.1) == 0.1 / 3  # type: ignore[operator]
    cache.forget_memory()
    third(value=0.1)  # type: ignore[operator]
    assert len(calls) == 1
    with cache.without_cache():
        third(value=0.1)  # type: ignore[operator]
    assert len(calls) == 2


def test_damage_is_recomputed(folder: Path, counted: tuple[list[float], object]) -> None:
    calls, third = counted
    third(value=0.1)  # type: ignore[operator]
    cache.forget_memory()
    with sqlite3.connect(folder / "accounting.sqlite") as connection:
        connection.execute("UPDATE remembered SET value = ?", ((5.0).hex(),))
    connection.close()
    assert third(value=0.1) == 0.1 / 3  # type: ignore[operator]
    assert len(calls) == 2


def test_other_code_is_another_key(
    folder: Path, counted: tuple[list[float], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, third = counted
    third(value=0.1)  # type: ignore[operator]
    cache.forget_memory()
    monkeypatch.setattr(cache, "code_hash", lambda *_: "another commit")
    third(value=0.1)  # type: ignore[operator]
    assert len(calls) == 2


def test_code_hash_follows_files_and_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a copy of the package: any file of accounting, any file of the function's own folder, any version."""
    package = tmp_path / "gdpfed"
    for name in ("privacy/accountant.py", "ledger/spend.py", "planning/plan.py"):
        (package / name).parent.mkdir(parents=True)
        (package / name).write_text("one = 1\n")
    monkeypatch.setattr(cache.gdpfed, "__file__", str(package / "__init__.py"))

    def now(*folders: str) -> str:
        cache.code_hash.cache_clear()
        return cache.code_hash(*folders)

    try:
        seen = [now("privacy"), now("privacy", "ledger")]
        (package / "planning" / "plan.py").write_text("one = 2\n")
        assert [now("privacy"), now("privacy", "ledger")] == seen
        (package / "ledger" / "spend.py").write_text("one = 2\n")
        assert now("privacy") == seen[0]
        assert now("privacy", "ledger") != seen[1]
        (package / "privacy" / "accountant.py").rename(package / "privacy" / "renamed.py")
        assert now("privacy") != seen[0]
        seen.append(now("privacy"))
        monkeypatch.setattr("importlib.metadata.version", lambda name: f"another {name}")
        assert now("privacy") != seen[-1]
    finally:
        cache.code_hash.cache_clear()


def test_a_function_is_known_by_its_module_and_its_code() -> None:
    from gdpfed.ledger.spend import _composed_epsilon

    assert cache._folders("gdpfed.privacy.calibrate") == ("privacy",)
    assert cache._folders(_composed_epsilon.__module__) == ("ledger", "privacy")
    assert cache._folders("tests.privacy.test_cache") == ("privacy",)


@pytest.mark.parametrize("break_it", ["corrupt", "folder", "unwritable"])
def test_broken_disk_is_no_error(
    folder: Path, counted: tuple[list[float], object], break_it: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, third = counted
    if break_it == "corrupt":
        (folder / "accounting.sqlite").write_bytes(b"not a database" * 100)
    elif break_it == "folder":
        (folder / "accounting.sqlite").mkdir()
    else:
        monkeypatch.setenv("GDPFED_CACHE", "/proc/nowhere")
    assert third(value=0.1) == 0.1 / 3  # type: ignore[operator]
    assert len(calls) == 1


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GDPFED_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_file() == tmp_path / "gdpfed" / "accounting.sqlite"
    monkeypatch.setenv("GDPFED_CACHE", "OFF")
    assert cache.cache_file() is None


def test_positional_arguments_are_refused(counted: tuple[list[float], object]) -> None:
    with pytest.raises(TypeError, match="keyword"):
        counted[1](0.1)  # type: ignore[operator]
