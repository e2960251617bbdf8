"""Whatever bytes a file holds: it is left as it is, or patched at its anchors only, and comes back to the byte."""

import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from deployer.agent.errors import AgentError
from deployer.agent.patching import edits
from tests.patches.engines import ONE_LINE, THREE_LINES, TRITON, UPSTREAM, make_engine, triton_text

ANCHOR = b"get_value_buffer(0)"
NEW = b'get_value_buffer(getattr(model_runner.token_to_kv_pool, "start_layer", 0))'

_pieces = st.sampled_from(
    [
        ANCHOR,
        NEW,
        b"class TritonAttnBackend:\n",
        b"    x = ",
        b"\n",
        b"\r\n",
        b"\xff\x00",
        b'"""',
        b"# c\n",
        b"    pass\n",
        b"if x:\n",
    ]
)
_whole = st.sampled_from([triton_text(middle).encode() for middle in (ONE_LINE, THREE_LINES, UPSTREAM)])
_contents = st.one_of(
    st.binary(max_size=200),
    st.lists(_pieces, max_size=12).map(b"".join),
    st.tuples(_whole, st.binary(max_size=20)).map(b"".join),
    st.tuples(_whole, st.integers(0, 400), st.binary(max_size=3)).map(
        lambda parts: parts[0][: parts[1]] + parts[2] + parts[0][parts[1] :]
    ),
)


def patched(content: bytes) -> set[bytes]:
    """All anchors from one to another replaced: those before the class or after it are none of the patch's."""
    pieces = content.split(ANCHOR)
    return {
        ANCHOR.join([*pieces[:first], NEW.join(pieces[first:end]), *pieces[end:]])
        for first in range(len(pieces))
        for end in range(first + 2, len(pieces) + 1)
    }


@given(_contents)
@example(content=b"class TritonAttnBackend get_value_buffer(0)\nget_value_buffer(0)")
@settings(max_examples=150, deadline=None)
def test_a_file_is_never_a_mixture(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        engine = make_engine(Path(folder) / "site", "0.5.2")
        engine.file(TRITON).write_bytes(content)
        try:
            answer = engine.apply("triton-pp")
        except AgentError:
            assert engine.file(TRITON).read_bytes() == content
            return
        now = engine.file(TRITON).read_bytes()
        assert answer["patches"][0]["state"] in ("applied", "fixed-upstream")
        assert now == content or now in patched(content)
        if now != content:
            engine.revert("triton-pp")
            assert engine.file(TRITON).read_bytes() == content


@given(st.text(max_size=80), st.text(min_size=1, max_size=6), st.text(max_size=6))
@settings(max_examples=300, deadline=None)
def test_a_text_is_patched_only_where_it_is_unpatched(text: str, find: str, replace: str) -> None:
    change = {"find": find, "replace": replace, "count": 1}
    if edits.look(text, {"changes": [change]}).kind == edits.UNPATCHED:
        made = edits.make(text, [change])
        assert len(made) == len(text) - len(find) + len(replace)
        before, _, after = made.partition(replace) if replace else (made, "", "")
        assert edits.decode(edits.encode(made)) == made and (before or after or made == replace)
