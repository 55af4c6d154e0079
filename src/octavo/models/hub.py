"""Fetch a model folder from the Hugging Face hub by its id, organization/name.

Takes the files that are read and no others; what they hold is the business of `checkpoint`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from octavo.errors import FetchError, ModelError

NEEDED_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
"""Patterns of the files that a folder is read from."""

_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


def is_hub_id(name: str) -> bool:
    """Tell whether a name could be a hub id: organization/name, and not the name of a GGUF file."""
    return _ID.fullmatch(name) is not None and not name.lower().endswith(".gguf")


def fetch_folder(hub_id: str, *, offline: bool, report: Callable[[str], None]) -> Path:
    """Return the folder of a hub model, fetched as far as it is not in the hub's cache.

    offline: look in that cache only. Progress is drawn on stderr by huggingface_hub, which also
    knows the user's token, mirror and cache folder. Raises `FetchError` if the hub refuses or
    cannot be reached, `ModelError` if the model is not there while offline.
    """
    # A tenth of a second to import, and few models come from the hub.
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    if not offline:
        report(f"looking up {hub_id} on the Hugging Face hub")
    try:
        folder = huggingface_hub.snapshot_download(
            hub_id, allow_patterns=list(NEEDED_FILES), local_files_only=offline
        )
    except LocalEntryNotFoundError as error:
        if offline:
            raise ModelError(
                f"there is no file or folder {hub_id}, and the model of that id is not in the "
                "Hugging Face cache while fetching is off. Run once without --offline (and without "
                "HF_HUB_OFFLINE) where there is a network, or give the path of a model."
            ) from None
        raise _unreachable(hub_id, error) from error
    except HFValidationError as error:
        raise ModelError(
            f"there is no file or folder {hub_id}, and it is no Hugging Face id: {error}"
        ) from None
    except Exception as error:  # HTTP, TLS, proxy, disk: whatever the library meets on its way
        raise _refused(hub_id, error) from error
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise ModelError(
            f"{hub_id} on the Hugging Face hub has no config.json, so it is no folder that is "
            "read. If it holds GGUF files, download one and give its path."
        )
    return path


def _unreachable(hub_id: str, error: Exception) -> FetchError:
    return FetchError(
        f"there is no file or folder {hub_id}, and the Hugging Face hub cannot be reached: "
        f"{_first_line(error)} Check the network (HF_ENDPOINT names a mirror), or fetch it "
        f"elsewhere (`hf download {hub_id}`) and give the path of the folder."
    )


def _refused(hub_id: str, error: Exception) -> FetchError:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return FetchError(
            f"the Hugging Face hub gives {hub_id} only to those who have accepted its terms. "
            f"Accept them at https://huggingface.co/{hub_id}, then log in with `hf auth login`."
        )
    if isinstance(error, RepositoryNotFoundError):
        return FetchError(
            f"there is no file or folder {hub_id}, and no such model on the Hugging Face hub, or "
            "it is private. Check the spelling; for a private model log in with `hf auth login`."
        )
    if isinstance(error, OSError) and getattr(error, "errno", None) is not None:
        return FetchError(
            f"{hub_id} could not be written to the Hugging Face cache: {error.strerror or error}. "
            "Free some space there, or set HF_HOME to a folder that can be written."
        )
    return _unreachable(hub_id, error)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = lines[0] if lines else type(error).__name__
    return line if line.endswith(".") else f"{line}."
