import pytest

from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.costs import PRICE, costs
from pamp_pipelines.evaluation.leaderboard import build_leaderboard, training_runs
from pamp_pipelines.lake.store import CheckpointKey

KEY = CheckpointKey("tiny", "poems", 1, 20)


@pytest.fixture
def trained(builder):
    builder.export(KEY)
    builder.metrics(
        KEY,
        [
            {"iteration": 1, "loss": 7.0, "seconds_per_iteration": 4.0},
            {"iteration": 11, "loss": 6.0, "seconds_per_iteration": 2.0},  # logged every ten
            {"iteration": 21, "loss": 5.0, "seconds_per_iteration": 2.0},
            {"iteration": 22, "loss": 5.0},
        ],
    )
    return builder


def test_cost_is_time_by_processes(trained, monkeypatch):
    monkeypatch.delenv(PRICE, raising=False)
    [cost] = costs(training_runs(trained.lake))
    assert (cost.run, cost.processes, cost.price) == ("tiny · poems", 1, None)
    assert cost.seconds == pytest.approx(4 + 10 * 2 + 10 * 2)
    assert cost.hours == pytest.approx(44 / 3600)
    assert cost.tokens == 21 * 4 * 64
    assert cost.tokens_per_second == pytest.approx(128), "of the usual iteration"


def test_a_price_is_shown_where_it_is_known(trained, monkeypatch):
    trained.scores(KEY, "sums", "sums", {"exact_match": (0.5, 0.1)})
    first = build_leaderboard(trained.lake)
    assert "<th>price</th>" not in (first.path / "index.html").read_text()
    monkeypatch.setenv(PRICE, "3600")
    second = build_leaderboard(trained.lake)
    assert second.id != first.id
    assert "<td>44.00</td>" in (second.path / "index.html").read_text()
    monkeypatch.setenv(PRICE, "cheap")
    with pytest.raises(InputError, match="expected a number"):
        costs(training_runs(trained.lake))


def test_runs_without_timings_have_no_cost(builder):
    builder.metrics(KEY, [{"iteration": 1, "loss": 7.0}])
    assert costs(training_runs(builder.lake)) == []
