"""The lazy import hook that the .pth file registers at every Python start.

Standard library only and very short: it imports nothing of mlx_lm, and nothing more of
ours until one of the modules below is imported. It may never break a Python start.
"""

import os
import sys

OFF_SWITCH = "MLX_LM_KIMI"
MARK = "_mlx_lm_kimi_seams"  # in a patched module: the names of its seams
# The modules of mlx_lm that activation.SEAMS patches.
MODULES = frozenset(
    {
        "mlx_lm.chat_templates",
        "mlx_lm.server",
        "mlx_lm.tokenizer_utils",
        "mlx_lm.tool_parsers",
        "mlx_lm.utils",
    }
)


def is_off() -> bool:
    """Whether the environment switches the package off (``MLX_LM_KIMI=0``)."""
    return os.environ.get(OFF_SWITCH, "1").strip().lower() in ("0", "false", "off")


class _Loader:
    """Runs the real loader, then patches the module."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        # The module keeps its own loader: inspect and pickle must see the real one.
        module.__loader__ = module.__spec__.loader = self._loader
        module.__dict__.pop(MARK, None)  # a reload starts anew
        self._loader.exec_module(module)
        _activate(module)

    def get_code(self, fullname):
        # Only runpy asks: `python -m mlx_lm.server` would run an unpatched copy.
        if fullname != "mlx_lm.server":
            return self._loader.get_code(fullname)
        return compile(
            "from mlx_lm.server import main\nif __name__ == '__main__':\n    main()\n",
            "<mlx_lm_kimi>",
            "exec",
        )


class _Finder:
    """Finds the watched modules where everyone else does, and wraps their loader."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in MODULES or is_off():
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(fullname, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


_finder = _Finder()


def _activate(module) -> bool:
    try:
        from . import activation

        return activation.activate(module)
    except Exception as e:  # mlx_lm must go on without us
        import warnings

        warnings.warn(
            f"mlx-lm-kimi could not patch {module.__name__} and leaves it as it is: {e!r}",
            stacklevel=2,
        )
        return False


def register() -> bool:
    """Register the hook and patch what is already imported; idempotent.

    Returns:
        False if it is switched off or a module could not be patched.
    """
    if is_off():
        return False
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    loaded = [sys.modules[m] for m in sorted(MODULES) if m in sys.modules]
    done = [_activate(module) for module in loaded]
    return all(done)
