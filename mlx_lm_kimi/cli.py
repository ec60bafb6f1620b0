"""The command line: `mlx_lm_kimi doctor [DIR]` and `mlx_lm_kimi demo`."""

from __future__ import annotations

import argparse
import sys

from ._version import __version__


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand; returns the exit status (0 if all is well)."""
    parser = argparse.ArgumentParser(
        prog="mlx_lm_kimi", description="Native Kimi tool calling for mlx-lm."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser(
        "doctor", help="say what is installed, and what would serve a model directory"
    )
    doctor.add_argument("dir", nargs="?", help="a model directory")
    demo = commands.add_parser(
        "demo", help="a tool call through mlx_lm.server with a tiny model"
    )
    demo.add_argument("--model", help="a Kimi directory (default: the tiny one)")
    args = parser.parse_args(argv)
    if args.command == "doctor":
        from .doctor import doctor as run

        return run(args.dir)
    from .demo import demo as run_demo

    return run_demo(args.model)


if __name__ == "__main__":
    sys.exit(main())
