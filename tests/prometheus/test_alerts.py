# SPDX-License-Identifier: Apache-2.0
"""Tests with promtool which series raise each alert, and which do not."""

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from cometmq.remoting.names import DLQ_REPLAY_GROUP

RULES = Path(__file__).resolve().parents[2] / "deploy/monitoring/alerts.yaml"
B = 'cluster="c",broker="b"'
I0, I1 = f'{B},instance="i0"', f'{B},instance="i1"'


class Case(NamedTuple):
    """Series with one value per minute, and whether the alert fires at a given minute."""

    alert: str
    series: dict[str, str]
    minute: int
    is_firing: bool = True


def buckets(metric: str, labels: str, counts: dict[str, str]) -> dict[str, str]:
    return {f'{metric}_bucket{{{labels},le="{le}"}}': values for le, values in counts.items()}


def steady(value: float, minutes: int = 120) -> str:
    return f"{value}+0x{minutes}"


UP, DOWN = f'cometmq_group_role{{{I0},role="master"}}', f'cometmq_group_role{{{I1},role="master"}}'
SLOW_SENDS = {"0.1": "0+0x60", "0.5": "0+60x60", "+Inf": "0+60x60"}
FAST_SENDS = {"0.1": "0+60x60", "0.5": "0+60x60", "+Inf": "0+60x60"}
SLOW_SYNCS = {"0.5": "0+0x60", "1.0": "0+60x60", "+Inf": "0+60x60"}
FAST_SYNCS = {"0.5": "0+60x60", "1.0": "0+60x60", "+Inf": "0+60x60"}
LAG = f'cometmq_group_lag_messages{{{B},group="g",topic="t"}}'
MEMBERS = f'cometmq_group_members{{{B},group="g"}}'
DEAD = f'cometmq_topic_put_messages_total{{{B},topic="%DLQ%g"}}'
IN_X, IN_Y = (f'group_namespace="{one}",group="b",instance="o"' for one in "xy")
CONDITION = 'cometmq_brokergroup_condition{group_namespace="x",group="b",condition="%s"}'
DECLARED = 'cometmq_operator_declared_ready{kind="Topic",object_namespace="x",object="t"}'

CASES = (
    Case("CometmqProgramDown", {'up{job="cometmq-broker",instance="i0"}': "1 0 0 0"}, 3),
    Case("CometmqProgramDown", {'up{job="other",instance="i0"}': steady(0)}, 9, is_firing=False),
    Case("CometmqMessagesRefused",
         {f'cometmq_store_refusal{{{I0},reason="disk-full"}}': steady(1)}, 2),
    Case("CometmqMessagesRefused", {f'cometmq_store_refusal{{{I0},reason="role"}}': steady(1)}, 9,
         is_firing=False),
    Case("CometmqBusy", {'cometmq_busy_total{instance="i0"}': "0+10x20",
                         'cometmq_requests_refused_total{instance="i0"}': steady(0),
                         'cometmq_requests_total{instance="i0"}': "0+100x20"}, 15),
    Case("CometmqBusy", {'cometmq_busy_total{instance="i0"}': "0+1x20",
                         'cometmq_requests_refused_total{instance="i0"}': steady(0),
                         'cometmq_requests_total{instance="i0"}': "0+1000x20"}, 15,
         is_firing=False),
    Case("CometmqHandlerFails", {'cometmq_handler_failures_total{instance="i0"}': "0 0 1 1"}, 3),
    Case("CometmqHandlerFails", {'cometmq_handler_failures_total{instance="i0"}': "1 1 1 1"}, 3,
         is_firing=False),
    Case("CometmqReleasesDiffer", {'cometmq_build_info{version="1",instance="i0"}': steady(1),
                                   'cometmq_build_info{version="2",instance="i1"}': steady(1)}, 61),
    Case("CometmqReleasesDiffer", {'cometmq_build_info{version="1",instance="i0"}': steady(1),
                                   'cometmq_build_info{version="1",instance="i1"}': steady(1)}, 61,
         is_firing=False),
    Case("CometmqMetricsIncomplete", {f"cometmq_metrics_dropped_rows{{{I0}}}": steady(5)}, 11),
    Case("CometmqMetricsIncomplete", {f"cometmq_metrics_dropped_rows{{{I0}}}": steady(0)}, 11,
         is_firing=False),
    Case("CometmqNoMaster", {UP: "1 0 0 0", DOWN: steady(0)}, 2),
    Case("CometmqNoMaster", {UP: "1 0 0 0", DOWN: "0 1 1 1"}, 2, is_firing=False),
    Case("CometmqTwoMasters", {UP: steady(1), DOWN: "0 1 1 1"}, 2),
    Case("CometmqTwoMasters", {UP: "1 1 0 0", DOWN: "0 0 1 1"}, 3, is_firing=False),
    Case("CometmqCopyMissing", {'cometmq_elector_in_sync{group="b",instance="e0"}': "3 2+0x20",
                                'cometmq_elector_members{group="b",instance="e0"}': steady(3)}, 7),
    Case("CometmqCopyMissing", {'cometmq_elector_in_sync{group="b",instance="e0"}': steady(3),
                                'cometmq_elector_members{group="b",instance="e0"}': steady(3)}, 7,
         is_firing=False),
    Case("CometmqCopyMissing", {f"cometmq_elector_in_sync{{{IN_X}}}": steady(3),
                                f"cometmq_elector_members{{{IN_X}}}": steady(3),
                                f"cometmq_elector_in_sync{{{IN_Y}}}": steady(2),
                                f"cometmq_elector_members{{{IN_Y}}}": steady(2)}, 7,
         is_firing=False),
    Case("CometmqElectionBlocked", {'cometmq_elector_blocked{group="b",reason="r"}': steady(1)}, 2),
    Case("CometmqElectionBlocked", {'cometmq_elector_blocked{group="b",reason="r"}': steady(0)}, 2,
         is_firing=False),
    Case("CometmqRecordUnreachable", {'cometmq_elector_record_reachable{group="b"}': steady(0)}, 2),
    Case("CometmqRecordUnreachable", {f"cometmq_group_record_reachable{{{I0}}}": steady(0)}, 2),
    Case("CometmqRecordUnreachable", {f"cometmq_group_record_reachable{{{I0}}}": steady(1)}, 2,
         is_firing=False),
    Case("CometmqFailover", {'cometmq_elector_elections_total{group="b",cause="c"}': "1 1 2 2"}, 3),
    Case("CometmqFailover", {'cometmq_elector_elections_total{group="b",cause="c"}': "1 1 1 1"}, 3,
         is_firing=False),
    Case("CometmqFailover", {'cometmq_elector_elections_total{group="b",cause="NoRecord"}': "0 1"},
         1, is_firing=False),
    Case("CometmqFailoverSlow", {'cometmq_elector_last_outage_seconds{group="b"}': "2 40"}, 1),
    Case("CometmqFailoverSlow", {'cometmq_elector_last_outage_seconds{group="b"}': "2 3"}, 1,
         is_firing=False),
    Case("CometmqReplicaBehind", {f"cometmq_group_behind_bytes{{{I1}}}": steady(65e6)}, 6),
    Case("CometmqReplicaBehind", {f"cometmq_replica_behind_bytes{{{I1}}}": steady(1e6)}, 6,
         is_firing=False),
    Case("CometmqReplicaNotFollowing", {f"cometmq_broker_is_slave{{{I1}}}": steady(1),
                                        f"cometmq_replica_following{{{I1}}}": steady(0)}, 2),
    Case("CometmqReplicaNotFollowing", {f"cometmq_broker_is_slave{{{I1}}}": steady(1),
                                        f"cometmq_replica_following{{{I1}}}": steady(0),
                                        f"cometmq_group_epoch{{{I1}}}": steady(4)}, 2,
         is_firing=False),
    Case("CometmqReplicaUnfit", {f'cometmq_replica_unfit{{{I1},reason="ahead"}}': "0 1"}, 1),
    Case("CometmqReplicaUnfit", {f'cometmq_replica_unfit{{{I1},reason="ahead"}}': "0 0"}, 1,
         is_firing=False),
    Case("CometmqDiskAlmostFull", {f"cometmq_store_disk_used_ratio{{{I0}}}": steady(0.9)}, 6),
    Case("CometmqDiskAlmostFull", {f"cometmq_store_disk_used_ratio{{{I0}}}": steady(0.8)}, 6,
         is_firing=False),
    Case("CometmqDiskFillsUp",
         {f"cometmq_store_disk_used_ratio{{{I0}}}": "0.5+0.0005x600"}, 300),
    Case("CometmqDiskFillsUp", {f"cometmq_store_disk_used_ratio{{{I0}}}": steady(0.8, 600)}, 300,
         is_firing=False),
    Case("CometmqStoreDamaged", {f"cometmq_store_damaged_bytes{{{I0}}}": "0 4096"}, 1),
    Case("CometmqStoreDamaged", {f"cometmq_store_damaged_bytes{{{I0}}}": "0 0"}, 1,
         is_firing=False),
    Case("CometmqTablesNotSaved", {f"cometmq_journal_failed_total{{{I0}}}": "0 0 3 3"}, 3),
    Case("CometmqTablesNotSaved", {f"cometmq_config_save_failed_total{{{I0}}}": "3 3 3 3"}, 3,
         is_firing=False),
    Case("CometmqAccountsBroken", {f"cometmq_acl_files_broken{{{I0}}}": steady(1)}, 2),
    Case("CometmqAccountsBroken", {f"cometmq_acl_files_broken{{{I0}}}": steady(0)}, 2,
         is_firing=False),
    Case("CometmqSyncsSlow", buckets("cometmq_store_sync_seconds", I0, SLOW_SYNCS), 20),
    Case("CometmqSyncsSlow", buckets("cometmq_store_sync_seconds", I0, FAST_SYNCS), 20,
         is_firing=False),
    Case("CometmqSendsSlow", buckets("cometmq_send_seconds", I0, SLOW_SENDS), 20),
    Case("CometmqSendsSlow", buckets("cometmq_send_seconds", I0, FAST_SENDS), 20, is_firing=False),
    Case("CometmqLoopBlocked", buckets("cometmq_loop_lag_seconds", I0, SLOW_SENDS), 20),
    Case("CometmqLoopBlocked", buckets("cometmq_loop_lag_seconds", I0, FAST_SENDS), 20,
         is_firing=False),
    Case("CometmqLagGrows", {LAG: "10000+100x120"}, 60),
    Case("CometmqLagGrows", {LAG: "90000-100x120"}, 60, is_firing=False),
    Case("CometmqLagOld",
         {f'cometmq_group_lag_seconds{{{B},group="g",topic="t"}}': steady(4000)}, 11),
    Case("CometmqLagOld",
         {f'cometmq_group_lag_seconds{{{B},group="g",topic="t"}}': steady(60)}, 11,
         is_firing=False),
    Case("CometmqLagOld",
         {f'cometmq_group_lag_seconds{{{B},group="{DLQ_REPLAY_GROUP}",topic="%DLQ%g"}}':
          steady(4000)}, 11, is_firing=False),
    Case("CometmqNoConsumer", {LAG: steady(2000), MEMBERS: steady(0)}, 16),
    Case("CometmqNoConsumer", {LAG: steady(2000), MEMBERS: steady(2)}, 16, is_firing=False),
    Case("CometmqSubscriptionsDiffer",
         {f'cometmq_group_mismatched_subscriptions{{{B},group="g"}}': steady(2)}, 6),
    Case("CometmqSubscriptionsDiffer",
         {f'cometmq_group_mismatched_subscriptions{{{B},group="g"}}': "2 2 _x20"}, 9,
         is_firing=False),
    Case("CometmqDeadLetters", {DEAD: "5 5 6 6"}, 3),
    Case("CometmqDeadLetters", {DEAD.replace("%DLQ%g", "t"): "5 5 6 6"}, 3, is_firing=False),
    Case("CometmqMessagesWillBeLost", {'cometmq_time_to_loss_seconds{group="g"}': "3600"}, 0),
    Case("CometmqMessagesWillBeLost", {'cometmq_time_to_loss_seconds{group="g"}': "1e6"}, 0,
         is_firing=False),
    Case("CometmqLagReportOld", {"cometmq_lag_report_timestamp_seconds": steady(0, 300)}, 130),
    Case("CometmqLagReportOld", {"cometmq_lag_report_timestamp_seconds": "0+60x300"}, 130,
         is_firing=False),
    Case("CometmqNotRegistered", {f"cometmq_namesrv_registered{{{I0}}}": steady(1),
                                  'cometmq_namesrv_brokers{instance="n0"}': steady(1),
                                  'cometmq_namesrv_brokers{instance="n1"}': steady(0)}, 3),
    Case("CometmqNotRegistered", {f"cometmq_namesrv_registered{{{I0}}}": steady(1),
                                  'cometmq_namesrv_brokers{instance="n0"}': steady(1)}, 3,
         is_firing=False),
    Case("CometmqStaleRegistrations",
         {'cometmq_namesrv_registrations_stale_total{instance="n0"}': "0+2x60"}, 15),
    Case("CometmqStaleRegistrations",
         {'cometmq_namesrv_registrations_stale_total{instance="n0"}': steady(2)}, 15,
         is_firing=False),
    Case("CometmqTransactionOld", {'cometmq_txn_oldest_timestamp_seconds{broker="b"}': steady(60)},
         30),
    Case("CometmqTransactionOld", {'cometmq_txn_oldest_timestamp_seconds{broker="b"}': steady(0)},
         30, is_firing=False),
    Case("CometmqTransactionsNotFollowed", {'cometmq_txn_followed{broker="b"}': steady(0)}, 6),
    Case("CometmqTransactionsNotFollowed", {'cometmq_txn_followed{broker="b",instance="t0"}':
                                            steady(0), 'cometmq_txn_followed{broker="b",'
                                            'instance="t1"}': steady(1)}, 6, is_firing=False),
    Case("CometmqNoElector", {f"cometmq_group_epoch{{{I0}}}": steady(4)}, 3),
    Case("CometmqNoElector", {f"cometmq_group_epoch{{{I0}}}": steady(4),
                              'cometmq_elector_rounds_total{group="b"}': "0+60x20"}, 3,
         is_firing=False),
    Case("CometmqMemberWithoutElector", {f"cometmq_group_electors{{{I0}}}": steady(0)}, 2),
    Case("CometmqMemberWithoutElector", {f"cometmq_group_electors{{{I0}}}": steady(-1)}, 2,
         is_firing=False),
    Case("CometmqOperatorIdle", {'cometmq_operator_acting{instance="o0"}': "1 0 0 0",
                                 'cometmq_operator_acting{instance="o1"}': steady(0)}, 3),
    Case("CometmqOperatorIdle", {'cometmq_operator_acting{instance="o0"}': "1 0 0 0",
                                 'cometmq_operator_acting{instance="o1"}': "0 1 1 1"}, 3,
         is_firing=False),
    Case("CometmqOperatorFails",
         {'cometmq_operator_passes_total{instance="o0",result="failed"}': "0+1x20"}, 15),
    Case("CometmqOperatorFails",
         {'cometmq_operator_passes_total{instance="o0",result="failed"}': "0 1+0x20"}, 15,
         is_firing=False),
    Case("CometmqBrokerGroupNotReady", {CONDITION % "SpecAccepted": steady(0)}, 11),
    Case("CometmqBrokerGroupNotReady", {CONDITION % "Ready": "0+0x5 1+0x10"}, 11,
         is_firing=False),
    Case("CometmqDeclaredNotReady", {DECLARED: steady(0)}, 11),
    Case("CometmqDeclaredNotReady", {DECLARED: steady(1)}, 11, is_firing=False),
)  # fmt: skip


def as_test(case: Case) -> dict[str, object]:
    """Return the case in promtool's form; the expression counts the alert's firing series."""
    expr = f'count(ALERTS{{alertname="{case.alert}",alertstate="firing"}})'
    samples = [{"labels": "{}", "value": 1}] if case.is_firing else []
    return {
        "name": f"{case.alert}{'' if case.is_firing else ' is quiet'}",
        "interval": "1m",
        "input_series": [{"series": name, "values": text} for name, text in case.series.items()],
        "promql_expr_test": [
            {"expr": expr, "eval_time": f"{case.minute}m", "exp_samples": samples}
        ],
    }


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)


def test_the_rules_are_valid() -> None:
    done = promtool("check", "rules", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    path = tmp_path / "test.yaml"
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [as_test(case) for case in CASES],
    }
    path.write_text(json.dumps(document))  # JSON is YAML
    done = promtool("test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_is_quiet() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    names = {rule["alert"] for group in groups for rule in group["rules"]}
    assert {case.alert for case in CASES if case.is_firing} == names
    assert {case.alert for case in CASES if not case.is_firing} == names
