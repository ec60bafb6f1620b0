"""Native Kimi tool calling for mlx-lm.

Once installed, nothing has to be imported: a .pth file registers a lazy import hook
(see hook.py). Importing this package is cheap, it loads neither mlx nor mlx_lm.
"""

import os as _os

from ._version import __version__

__all__ = ["__version__", "install"]

# In a checkout (editable install) the two upstream folders lie beside this package.
_root = _os.path.dirname(_os.path.dirname(_os.path.abspath(__file__)))
if not _os.path.isdir(_os.path.join(__path__[0], "tool_parsers")):
    __path__.append(_root)


def install() -> bool:
    """Do what the .pth hook does, explicitly; safe to call any number of times.

    For embedders that run where .pth files are not read. Works before and after
    mlx_lm was imported.

    Returns:
        True if the hook is on. False if ``MLX_LM_KIMI=0`` switches it off, or if
        mlx-lm is not a version this package knows (it warns once).
    """
    from . import hook

    return hook.register()
