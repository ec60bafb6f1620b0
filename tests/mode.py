"""One suite, two modes: the hook over stock mlx-lm, or a patched mlx-lm without us.

``KIMI_TEST_MODE=patched`` is what upstream/check.py sets: mlx_lm then holds our modules,
and the names of this package that tests import are those of mlx_lm.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import sys

PATCHED = os.environ.get("KIMI_TEST_MODE") == "patched"
ALIASES = {
    "mlx_lm_kimi": "mlx_lm.kimi",
    "tool_parsers": "mlx_lm.tool_parsers",
    "chat_templates": "mlx_lm.chat_templates",
}


class _Same:
    """A loader that gives the module of another name, the same object."""

    def __init__(self, name: str):
        self.name = name

    def create_module(self, spec):
        module = importlib.import_module(self.name)
        self.spec = module.__spec__
        return module

    def exec_module(self, module):
        module.__spec__ = self.spec  # the import system has set its own


class _Aliases:
    """Finds the names of this package in mlx_lm."""

    def find_spec(self, fullname, path=None, target=None):
        top, _, rest = fullname.partition(".")
        if top not in ALIASES:
            return None
        real = f"{ALIASES[top]}.{rest}" if rest else ALIASES[top]
        if importlib.util.find_spec(real) is None:
            return None
        return importlib.machinery.ModuleSpec(
            fullname, _Same(real), is_package=not rest
        )


def install() -> None:
    """Make mlx_lm serve Kimi in this process; safe to call any number of times."""
    if not PATCHED:
        import mlx_lm_kimi

        mlx_lm_kimi.install()
    elif not any(isinstance(finder, _Aliases) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Aliases())
