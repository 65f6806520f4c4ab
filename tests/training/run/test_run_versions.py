"""Which version directory a job works in."""

from concurrent.futures import ThreadPoolExecutor

from pamp_pipelines.lake.store import Lake
from pamp_pipelines.training.versions import select_version, version_id


def test_equal_inputs_share_a_version_and_others_do_not(tmp_path):
    lake = Lake(tmp_path)
    assert select_version(lake, "m", "c", "one", fresh=False) == 1
    assert select_version(lake, "m", "c", "one", fresh=False) == 1
    assert select_version(lake, "m", "c", "two", fresh=False) == 2
    assert select_version(lake, "m", "c", "one", fresh=False) == 1  # an edit that was taken back
    assert select_version(lake, "m", "c", "one", fresh=True) == 3
    assert select_version(lake, "m", "c", "one", fresh=False) == 3  # the newest of equal ones
    assert select_version(lake, "m", "other", "one", fresh=False) == 1


def test_a_dry_run_claims_nothing(tmp_path):
    lake = Lake(tmp_path)
    assert select_version(lake, "m", "c", "one", fresh=False, claim=False) == 1
    assert lake.versions("m", "c") == []


def test_a_folder_that_was_never_claimed_is_not_reused(tmp_path):
    lake = Lake(tmp_path)
    lake.version_dir("m", "c", 4).mkdir(parents=True)
    assert version_id(lake.version_dir("m", "c", 4)) is None
    assert select_version(lake, "m", "c", "one", fresh=False) == 5


def test_a_version_is_claimed_once(tmp_path):
    lake = Lake(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        versions = list(pool.map(lambda _: select_version(lake, "m", "c", "one", fresh=True), range(16)))
        assert sorted(versions) == list(range(1, 17))
        again = set(pool.map(lambda _: select_version(lake, "m", "c", "two", fresh=False), range(16)))
    assert again == {17}
