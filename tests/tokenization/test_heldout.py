import hashlib

from hypothesis import given
from hypothesis import strategies as st

from pamp_pipelines.tokenization.heldout import held_out_rule


@given(text=st.text(st.characters(codec="utf-8")), fraction=st.floats(0, 0.999), seed=st.integers(-5, 5))
def test_the_rule_is_the_documented_one(text: str, fraction: float, seed: int) -> None:
    digest = hashlib.sha256(f"{seed}\n{text}".encode()).digest()
    expected = int.from_bytes(digest[:8], "big") < int(fraction * 2**64)
    assert held_out_rule(fraction, seed)(text) == expected


def test_the_share_is_about_the_fraction_and_moves_with_the_seed() -> None:
    texts = [f"document {i}" for i in range(20_000)]
    chosen = [{t for t in texts if held_out_rule(0.1, seed)(t)} for seed in (0, 1)]
    for texts_out in chosen:
        assert 1870 < len(texts_out) < 2130  # 3 standard deviations
    assert 130 < len(chosen[0] & chosen[1]) < 270


def test_a_larger_fraction_holds_out_more_of_the_same() -> None:
    texts = [f"document {i}" for i in range(1000)]
    small, large = ({t for t in texts if held_out_rule(f, 0)(t)} for f in (0.05, 0.2))
    assert small < large


def test_nothing_is_held_out_at_zero() -> None:
    assert not any(held_out_rule(0.0, 0)(f"{i}") for i in range(1000))
