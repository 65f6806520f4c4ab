"""A home is lost after a long history with edits in between: afterwards the UI shows what it showed."""

from collections.abc import Callable
from typing import Any

import pytest

from pamp_pipelines.orchestration.reindex import Reindexed, reindex
from pamp_pipelines.project import Project
from tests.orchestration.shown import differences, shown
from tests.orchestration.story import Story

RUN = "scratch|both"
EARLY, LATE = "scratch/both/v0001/0000004", "scratch/both/v0001/0000008"


def prepare(story: Story) -> None:
    """Everything once, all of it fresh."""
    story.observe()
    for corpus in ("plays", "sonnets"):
        story.make("raw_corpus", corpus)
        story.make("tokenized_shards", f"{corpus}|scratch", "first", ("raw_corpus", corpus))
    story.make("megatron_checkpoint", "scratch", failed=["tokenizer"])
    shards = [("tokenized_shards", "plays|scratch"), ("tokenized_shards", "sonnets|scratch")]
    story.make("pretrained_checkpoint", RUN, "first", *shards, ("megatron_checkpoint", "scratch"))
    for day, key in enumerate((LATE, EARLY), 1):
        story.keep(key, f"2026-01-{day:02d}T00:00:00+00:00")
        story.make("hf_export", key, "first", ("checkpoint", key))
        story.make("eval_scores/sums", key, "first", ("hf_export", key))
    story.make("eval_scores/perplexity", EARLY, "first", ("hf_export", EARLY))
    story.make("leaderboard", None)


def edit_corpus_and_make_half_of_it_again(story: Story) -> None:
    story.edit("corpora/plays", held_out={"fraction": 0.4})
    story.make("raw_corpus", "plays")  # finds what is there
    story.make("tokenized_shards", "plays|scratch", "second", ("raw_corpus", "plays"))


def edit_model_without_making_anything(story: Story) -> None:
    story.edit("models/scratch", licence="MIT")


def go_back_to_an_older_artifact(story: Story) -> None:
    story.make("raw_corpus", "sonnets", "another")
    story.make("raw_corpus", "sonnets", "first")


def use_shards_of_the_same_tokenizer_for_another_model(story: Story) -> None:
    story.make("tokenized_shards", "sonnets|imported", "first", ("raw_corpus", "sonnets"))
    story.edit("models/imported", description="Other words.", licence="MIT")


def train_anew(story: Story) -> None:
    shards = [("tokenized_shards", "plays|scratch"), ("tokenized_shards", "sonnets|scratch")]
    story.edit("training_configs/both", iterations=12)
    story.make("pretrained_checkpoint", RUN, "second", *shards, ("megatron_checkpoint", "scratch"))
    story.edit("training_configs/both", iterations=16)


def edit_one_evaluation_and_break_another(story: Story) -> None:
    story.edit("evaluations/perplexity", limit=3)
    (story.project.data / "sums.jsonl").unlink()


def rename_the_config(story: Story) -> None:
    configs = story.project.assets / "training_configs"
    (configs / "both.yaml").rename(configs / "other.yaml")
    story.observe()


def export_again_under_other_scores(story: Story) -> None:
    story.make("hf_export", LATE, "by another version", ("checkpoint", LATE))


def score_after_the_leaderboard(story: Story) -> None:
    story.make("eval_scores/perplexity", LATE, "first", ("hf_export", LATE), failed=["score_not_extreme"])


EVENTS: list[Callable[[Story], None]] = [
    edit_corpus_and_make_half_of_it_again,
    edit_model_without_making_anything,
    go_back_to_an_older_artifact,
    use_shards_of_the_same_tokenizer_for_another_model,
    train_anew,
    score_after_the_leaderboard,
    export_again_under_other_scores,
    edit_one_evaluation_and_break_another,
    rename_the_config,
]


@pytest.mark.slow
def test_the_ui_shows_what_it_showed(own_project: Project) -> None:
    story = Story(own_project)
    prepare(story)
    fresh = shown(own_project)
    assert {one["stale"] for asset in fresh for one in fresh[asset].values() if isinstance(one, dict)} == {"FRESH"}
    *earlier, rename = EVENTS
    for happens in earlier:
        happens(story)
    assert lost_and_found(story) == {}
    rename(story)
    assert lost_and_found(story) == {}


def lost_and_found(story: Story) -> dict[str, tuple[Any, Any]]:
    """What the UI shows otherwise after the home was lost."""
    before = shown(story.project)
    story.lose_home()
    assert reindex(story.project).left_out == {}
    after = shown(story.project)
    assert reindex(story.project) == Reindexed()
    return differences(before, after)
