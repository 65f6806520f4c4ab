import datetime

import dagster as dg


def test_cron_of_a_config_trains_a_fresh_version_of_each_declared_model(definitions: dg.Definitions) -> None:
    repository = definitions.get_repository_def()
    at = datetime.datetime(2026, 1, 5, 3, tzinfo=datetime.UTC)
    context = dg.build_schedule_context(scheduled_execution_time=at, repository_def=repository)
    result = repository.get_schedule_def("retrain_both").evaluate_tick(context)
    requests = result.run_requests or []
    assert [r.partition_key for r in requests] == ["imported|both", "scratch|both"]
    assert [r.run_key for r in requests] == [f"{at.isoformat()}:{r.partition_key}" for r in requests]
    assert all(r.run_config["ops"]["pretrained_checkpoint"]["config"]["mode"] == "fresh" for r in requests)


def test_schedules_ship_stopped(definitions: dg.Definitions) -> None:
    schedules = definitions.get_repository_def().schedule_defs
    assert [s.default_status for s in schedules] == [dg.DefaultScheduleStatus.STOPPED]
