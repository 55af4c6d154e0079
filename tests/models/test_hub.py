"""Models from the Hugging Face hub, with the hub replaced by a function: no test has a network."""

from __future__ import annotations

import errno
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from octavo.build import pull_model, resolve_model
from octavo.errors import FetchError, ModelError
from octavo.models.hub import NEEDED_FILES, fetch_folder, is_hub_id

ID = "octavo-tests/tiny"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tiny_folder: Path):
    """A hub that answers with the tiny folder, or with the error put into `hub["error"]`."""
    state: dict[str, object] = {"folder": tiny_folder, "error": None, "calls": []}

    def snapshot_download(repo_id: str, **options: object) -> str:
        state["calls"].append((repo_id, options))
        if state["error"] is not None:
            raise state["error"]
        return str(state["folder"])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return state


def http_error(kind: type[Exception]) -> Exception:
    """One of the library's errors, without the response that it would carry."""
    return kind.__new__(kind)


def resolve(name: str = ID, *, offline: bool = False, said: list[str] | None = None) -> Path:
    return resolve_model(name, offline=offline, report=(said if said is not None else []).append)


def test_an_id_is_fetched_and_opened_as_a_folder(hub, tiny_folder):
    said: list[str] = []

    assert resolve(said=said) == tiny_folder
    assert hub["calls"] == [(ID, {"allow_patterns": list(NEEDED_FILES), "local_files_only": False})]
    assert said == [f"looking up {ID} on the Hugging Face hub"]


def test_pull_takes_an_id_too(hub, tiny_folder):
    assert pull_model(ID, lambda _: None) == tiny_folder


def test_only_the_files_that_are_read_are_fetched():
    from fnmatch import fnmatch

    def wanted(name: str) -> bool:
        return any(fnmatch(name, pattern) for pattern in NEEDED_FILES)

    assert wanted("model-00001-of-00004.safetensors")
    assert wanted("tokenizer.json")
    for name in ("pytorch_model.bin", "consolidated.safetensors", "original/params.json", "a.md"):
        assert not wanted(name)


@pytest.mark.parametrize("switch", ["flag", "environment"])
def test_offline_looks_into_the_cache_only(hub, tiny_folder, monkeypatch, switch):
    if switch == "environment":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    assert resolve(offline=switch == "flag") == tiny_folder
    assert hub["calls"][0][1]["local_files_only"] is True


def test_a_model_that_is_not_cached_is_refused_offline(hub):
    hub["error"] = LocalEntryNotFoundError("not cached")

    with pytest.raises(ModelError, match=r"octavo-tests/tiny, and .* while fetching is off.*Run"):
        resolve(offline=True)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            LocalEntryNotFoundError("no snapshot\nhere"),
            r"cannot be reached: no snapshot\. .*hf down",
        ),
        (ConnectionError("refused"), r"cannot be reached: refused\. Check the network"),
        (http_error(RepositoryNotFoundError), r"no such model on the Hugging Face hub.*hf auth"),
        (http_error(GatedRepoError), r"accepted its terms.*https://huggingface\.co/octavo-tests"),
        (OSError(errno.ENOSPC, "No space left on device"), r"No space left on device.*HF_HOME"),
    ],
    ids=["no network", "connection", "unknown", "gated", "full disk"],
)
def test_what_goes_wrong_is_said_with_a_way_out(hub, error, message):
    hub["error"] = error

    with pytest.raises(FetchError, match=message):
        resolve()


def test_a_name_that_is_no_id_is_refused(hub):
    hub["error"] = HFValidationError("bad name")

    with pytest.raises(ModelError, match="it is no Hugging Face id: bad name"):
        fetch_folder("a/b", offline=False, report=lambda _: None)


def test_a_repository_of_gguf_files_is_told_apart(hub, tmp_path):
    hub["folder"] = tmp_path

    with pytest.raises(ModelError, match=r"has no config\.json.*GGUF files, download one"):
        resolve()


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("Qwen/Qwen2.5-0.5B", True),
        ("a/b", True),
        ("models/m.gguf", False),
        ("m", False),
        ("./a/b", False),
        ("../b", False),
        ("/a/b", False),
        ("a/b/c", False),
        ("~/b", False),
        ("a/", False),
        ("a b/c", False),
        ("a/b\n", False),
        ("ä/b", False),
    ],
)
def test_which_names_are_looked_up(hub, name, is_one):
    assert is_hub_id(name) == is_one
    if not is_one:
        assert resolve(name) == Path(name)
        assert hub["calls"] == []


def test_a_folder_on_this_machine_comes_first(hub, tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    assert resolve("a/b") == Path("a/b")
    assert hub["calls"] == []
