"""Every place of mlx_lm that this package patches, one row each.

A seam is applied once, after its module was imported (see hook.py). `doctor` prints the
table, tests/test_seams.py fails when upstream moves one and names the patches in
upstream/ that delete it.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from .hook import MARK

SUPPORTED = "0.31.3 and 0.32"
_SUPPORTED_PATTERN = re.compile(r"0\.31\.3|0\.32\.\d+")


@dataclass(frozen=True)
class Seam:
    """A patched place of mlx_lm.

    Attributes:
        name: what doctor and UPSTREAM.md call it.
        module: the module that is patched.
        attributes: dotted names in the module that must exist.
        apply: patches the module.
        patches: the diffs in upstream/ that delete the seam.
    """

    name: str
    module: str
    attributes: tuple[str, ...]
    apply: Callable[[ModuleType], None]
    patches: tuple[str, ...]


def _own_folder_first(module: ModuleType) -> None:
    # Our file is then *the* mlx_lm.tool_parsers.kimi_k2; no attribute is patched.
    name = module.__name__.rpartition(".")[2]
    here = Path(__file__).parent
    folder = here / name if (here / name).is_dir() else here.parent / name
    module.__path__.insert(0, str(folder))


def _auto_tokenizer(module: ModuleType) -> None:
    from .loading import AutoTokenizer

    module.AutoTokenizer = AutoTokenizer(module.AutoTokenizer)


def _tokenizer_load(module: ModuleType) -> None:
    from .loading import wrap_load

    module.load = wrap_load(module.load)


def _utils_load(module: ModuleType) -> None:
    # utils imported the name before the seam above, if install() came late.
    from mlx_lm import tokenizer_utils

    module._load_tokenizer = tokenizer_utils.load


def _server(module: ModuleType) -> None:
    from . import server

    server.patch(module)


SEAMS: tuple[Seam, ...] = (
    Seam(
        "tool parsers",
        "mlx_lm.tool_parsers",
        ("__path__",),
        _own_folder_first,
        ("02-k2-parser", "03-k3-parser"),
    ),
    Seam(
        "chat templates",
        "mlx_lm.chat_templates",
        ("__path__",),
        _own_folder_first,
        ("04-chat-templates",),
    ),
    Seam(
        "tokenizer without remote code",
        "mlx_lm.tokenizer_utils",
        ("AutoTokenizer.from_pretrained",),
        _auto_tokenizer,
        ("08-fast-tokenizer",),
    ),
    Seam(
        "selection by model type",
        "mlx_lm.tokenizer_utils",
        ("load", "TokenizerWrapper"),
        _tokenizer_load,
        ("05-selection-by-model-type", "08-fast-tokenizer"),
    ),
    Seam(
        "selection by model type, late install",
        "mlx_lm.utils",
        ("_load_tokenizer",),
        _utils_load,
        ("05-selection-by-model-type",),
    ),
    Seam(
        "request handler",
        "mlx_lm.server",
        (
            "APIHandler.do_POST",
            "ResponseGenerator._tokenize",
            "ResponseGenerator.generate",
            "_make_logits_processors",
            "make_sampler",
            "_run_http_server",
            "run",
            "CompletionRequest",
            "GenerationArguments",
        ),
        _server,
        ("09-server-faults", "13-handler", "15-constraint"),
    ),
)


@functools.cache
def mlx_lm_version() -> str | None:
    """The version of the installed mlx-lm, or None if there is none."""
    try:
        from mlx_lm._version import __version__
    except ImportError:
        return None
    return __version__


def is_supported(version: str | None) -> bool:
    """Whether this package knows how to patch that version of mlx-lm."""
    return version is not None and bool(_SUPPORTED_PATTERN.fullmatch(version))


@functools.cache
def _warn_unsupported(version: str | None) -> None:
    warnings.warn(
        f"mlx-lm-kimi supports mlx-lm {SUPPORTED}, found {version}: "
        "mlx-lm is left as it is. Upgrade mlx-lm-kimi, or set MLX_LM_KIMI=0.",
        stacklevel=2,
    )


def missing(seam: Seam, module: ModuleType) -> list[str]:
    """The attributes a seam needs and the module lacks."""
    lacking = []
    for dotted in seam.attributes:
        owner = module
        for part in dotted.split("."):
            owner = getattr(owner, part, None)
        if owner is None:
            lacking.append(dotted)
    return lacking


def activate(module: ModuleType) -> bool:
    """Apply the seams of a module that was just imported; idempotent.

    Returns:
        Whether all of them are in place. Warns, and leaves the module as it is, if
        mlx-lm's version is unknown or a patched place is gone.
    """
    if not is_supported(mlx_lm_version()):
        _warn_unsupported(mlx_lm_version())
        return False
    done = module.__dict__.setdefault(MARK, set())
    for seam in SEAMS:
        if seam.module != module.__name__ or seam.name in done:
            continue
        if lacking := missing(seam, module):
            raise AttributeError(f"seam '{seam.name}': no {', '.join(lacking)}")
        seam.apply(module)
        done.add(seam.name)
    return True


def is_active(seam: Seam) -> bool:
    """Whether a seam is in place in this process."""
    import sys

    module = sys.modules.get(seam.module)
    return module is not None and seam.name in getattr(module, MARK, ())
