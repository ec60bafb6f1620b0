"""The patched places of mlx_lm are where we look for them.

When a new mlx-lm moves one, this names the patches in upstream/ to look at.
"""

import importlib
import inspect
import types

import pytest

from mlx_lm_kimi import activation


def diffs(seam) -> str:
    """The files in upstream/ that a seam stands for."""
    return ", ".join(f"upstream/{name}.diff" for name in seam.patches)


@pytest.mark.parametrize("seam", activation.SEAMS, ids=lambda s: s.name)
def test_the_place_exists(seam):
    module = importlib.import_module(seam.module)
    lacking = activation.missing(seam, module)
    assert not lacking, f"{seam.module} moved {lacking}: see {diffs(seam)}"
    assert activation.is_active(seam)


def test_the_version_is_supported():
    assert activation.is_supported(activation.mlx_lm_version())


def test_tokenize_gives_what_the_generator_unpacks():
    import mlx_lm.server as server

    source = inspect.getsource(server.ResponseGenerator._serve_single)
    wanted = 5 if hasattr(server, "Vision") else 4
    names = source.partition("= self._tokenize(")[0].rpartition("\n")[2]
    assert len(names.split(",")) == wanted, "see upstream/13-handler.diff"


def test_a_moved_place_is_told_with_its_patches():
    seam = activation.SEAMS[-1]
    module = types.ModuleType(seam.module)
    lacking = activation.missing(seam, module)
    assert lacking == list(seam.attributes)
    assert "upstream/13-handler.diff" in diffs(seam)
    with pytest.raises(AttributeError, match=r"APIHandler\.do_POST"):
        activation.activate(module)


def test_our_parser_is_the_parser():
    import mlx_lm.tool_parsers.kimi_k2 as parser

    assert hasattr(parser, "ToolCallStream")


def test_every_seam_is_documented():
    from tests.conftest import ROOT

    text = (ROOT / "UPSTREAM.md").read_text()
    for seam in activation.SEAMS:
        assert seam.name.partition(",")[0] in text


def test_a_request_travels_to_every_rank():
    import pickle

    from mlx_lm_kimi.grammar import ConstraintSpec
    from mlx_lm_kimi.server import Completion, Local

    spec = ConstraintSpec(tools=({"type": "function", "function": {"name": "f"}},))
    local = Local(tokenizer=lambda: None)  # what can't travel stays
    sent = Completion(
        "chat", "", [{"role": "user"}], None, constraint=spec, local=local
    )
    got = pickle.loads(pickle.dumps(sent))
    assert got.constraint == spec and got.messages == sent.messages
    assert got.local == Local() and sent.local is local
