# SPDX-License-Identifier: Apache-2.0
"""The rendered objects are valid and restricted, and programs accept their settings."""

import re
from base64 import b64decode
from itertools import pairwise
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from cometmq.broker.copies.members import check_members, parse_members
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.start_checks import check_settings
from cometmq.console.settings import ConsoleSettings
from cometmq.elector.plan import parse_members as parse_control_members
from cometmq.elector.settings import ElectorSettings
from cometmq.exporter.settings import ExporterSettings
from cometmq.ha.places.choice import open_record
from cometmq.ha.proof import parse_keys
from cometmq.namesrv.settings import NamesrvSettings
from cometmq.remoting.transport.certificate import self_signed_pem
from cometmq.runtime.settings import load
from cometmq.runtime.tls_keys import client_tls
from cometmq.txn_checker.settings import TxnCheckerSettings

CHART = Path(__file__).resolve().parents[2] / "deploy/helm/cometmq"
KUBERNETES = "1.34"
DRIVER = "mq-cometmq-lag-report"
"""The only pod with rights, and only if it creates executors."""
EXECUTOR = "pod.yaml"
"""The file of a ConfigMap from which Spark makes the pods of executors."""
EXAMPLES = sorted((CHART / "ci").glob("*-values.yaml"))
SETTINGS = {
    "broker": BrokerSettings,
    "namesrv": NamesrvSettings,
    "txn-checker": TxnCheckerSettings,
    "elector": ElectorSettings,
    "exporter": ExporterSettings,
    "console": ConsoleSettings,
}


@pytest.fixture(scope="session", params=[None, *EXAMPLES], ids=lambda one: one and one.stem)
def objects(request, render):
    return render([request.param] if request.param else [])


def of_kind(objects, *kinds):
    return [one for one in objects if one["kind"] in kinds]


def templates(objects):
    """Return the pods and pod templates, by the name of the object that owns them."""
    found = {}
    for one in objects:
        spec = one.get("spec", {})
        if one["kind"] == "Pod":
            found[one["metadata"]["name"]] = one
        elif one["kind"] == "CronJob":
            found[one["metadata"]["name"]] = spec["jobTemplate"]["spec"]["template"]
        elif "template" in spec:
            found[one["metadata"]["name"]] = spec["template"]
        elif EXECUTOR in one.get("data", {}):
            found[one["metadata"]["name"]] = yaml.safe_load(one["data"][EXECUTOR])
    return found


def containers(template):
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def settings_files(objects):
    return {
        (one["metadata"]["name"], name): text
        for one in of_kind(objects, "ConfigMap")
        for name, text in one["data"].items()
        if name != EXECUTOR
    }


def write_certificate(folder):
    """Write the files of the Secret in tls.existingSecret."""
    both = self_signed_pem("cometmq")
    certificate = both[both.index("-----BEGIN CERTIFICATE") :]
    for name, text in (("tls.crt", certificate), ("ca.crt", certificate), ("tls.key", both)):
        (folder / name).write_text(text, encoding="utf-8")


def loaded(name, text, folder):
    """Load a settings file as its program does; return the settings."""
    program = next(one for one in SETTINGS if name.startswith(one))
    path = folder / name
    if "/etc/cometmq/tls" in text:
        write_certificate(folder)
    (folder / "group.key").write_text("k" * 44 + "\n", encoding="utf-8")
    text = re.sub(r"/etc/cometmq/(tls|group-key[\w-]*)", str(folder), text)
    path.write_text(text, encoding="utf-8")
    return load(SETTINGS[program], prefix="UNSET", file=path, cli={})


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one.stem)
def test_lint_accepts_the_examples(helm, example):
    done = helm("lint", "--strict", str(CHART), "--values", str(example))
    assert done.returncode == 0, done.stdout


def test_objects_fit_the_schema_of_kubernetes(objects):
    assert len(objects) > 8
    for one in objects:
        if one["apiVersion"].startswith("monitoring.coreos.com/"):
            continue  # a custom resource, which Kubernetes' schemas do not include
        kubernetes_validate.validate(one, KUBERNETES, strict=True)


def test_a_wrong_object_does_not_fit_the_schema_of_kubernetes(render):
    """This proves that the schemas are loaded and that misspelt fields are found."""
    one = of_kind(render(), "StatefulSet")[0]
    one["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(one, KUBERNETES, strict=True)


def test_every_object_has_its_own_name(objects):
    names = [(one["kind"], one["metadata"]["name"]) for one in objects]
    assert len(names) == len(set(names))
    assert [name for _, name in names if len(name) > 63] == []


def test_the_programs_accept_their_settings(objects, tmp_path):
    files = settings_files(objects)
    assert {"namesrv.conf", "txn-checker.conf"} <= {name for _, name in files}
    for (_, name), text in files.items():
        result = loaded(name, text, tmp_path)
        assert result.unknown == {}, name
        assert result.ineffective() == {}, name
        if name.startswith("broker-"):
            check_settings(result)


def test_brokers_and_elector_of_a_group_agree(objects, tmp_path):
    files = settings_files(objects)
    groups = [name for name, file in files if file == "elector.conf"]
    electors = [name for name in templates(objects) if name.endswith("-elector")]
    assert len(groups) == len(electors)
    for elector_map in groups:
        elector = loaded("elector.conf", files[elector_map, "elector.conf"], tmp_path).value
        brokers = [
            loaded(file, text, tmp_path).value
            for (name, file), text in files.items()
            if name == elector_map.removesuffix("-elector")
        ]
        assert len(brokers) > 1
        assert [one.broker_id for one in brokers] == list(range(len(brokers)))
        members = parse_members(brokers[0].group_members)
        assert set(members) == set(parse_control_members(elector.control_members))
        for one in brokers:
            check_members(one)
            assert one.group_members == brokers[0].group_members
            assert one.group_record == elector.group_record
            assert one.broker_name == elector.broker_name
            assert one.min_in_sync == elector.min_in_sync
            assert one.renew_deadline_mills == elector.renew_deadline_mills
        open_record(elector.group_record, tls=client_tls(elector))


def test_group_members_are_pods_of_the_headless_service(objects, tmp_path):
    services = {one["metadata"]["name"]: one["spec"] for one in of_kind(objects, "Service")}
    sets = {one["metadata"]["name"]: one["spec"] for one in of_kind(objects, "StatefulSet")}
    for (name, file), text in settings_files(objects).items():
        if not file.startswith("broker-"):
            continue
        assert services[name]["publishNotReadyAddresses"]
        assert sets[name]["serviceName"] == name
        settings = loaded(file, text, tmp_path).value
        assert 0 <= settings.broker_id < sets[name]["replicas"]
        if settings.group_members:
            member = parse_members(settings.group_members)[settings.broker_id]
            assert f"{name}-{settings.broker_id}.{name}.prod.svc" in str(member)
            assert f":{settings.listen_port}" in settings.group_members


def test_pods_meet_the_restricted_standard(objects):
    for name, template in templates(objects).items():
        pod = template["spec"]["securityContext"]
        assert pod["runAsNonRoot"], name
        assert pod["runAsUser"] > 0
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not template["spec"].get("hostNetwork")
        for one in containers(template):
            context = one["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in context
            assert all("hostPort" not in port for port in one.get("ports", []))
        allowed = {"configMap", "emptyDir", "secret", "persistentVolumeClaim", "projected"}
        assert all((set(one) - {"name"}) <= allowed for one in template["spec"]["volumes"])


def test_pods_have_no_rights_and_no_foreign_variables(objects):
    """Kubernetes would set COMETMQ_..._PORT for each Service; programs read it as a setting."""
    bindings = of_kind(objects, "RoleBinding")
    with_rights = {subject["name"] for one in bindings for subject in one["subjects"]}
    assert of_kind(objects, "ClusterRole", "ClusterRoleBinding") == []
    for name, template in templates(objects).items():
        spec = template["spec"]
        has_rights = spec["serviceAccountName"] in with_rights
        assert spec["automountServiceAccountToken"] is has_rights
        assert not has_rights or name == DRIVER
        assert spec["enableServiceLinks"] is False


def test_every_container_has_limits_and_long_running_ones_have_probes(objects):
    for one in of_kind(objects, "StatefulSet", "Deployment"):
        for container in one["spec"]["template"]["spec"]["containers"]:
            assert "memory" in container["resources"]["limits"]
            if container["name"] != "collector":  # has no HTTP port
                assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container)


def test_selectors_of_owners_match_their_pods_and_no_others(objects):
    pods = {name: one["metadata"]["labels"] for name, one in templates(objects).items()}
    for one in of_kind(objects, "StatefulSet", "Deployment"):
        wanted = one["spec"]["selector"]["matchLabels"].items()
        found = [name for name, labels in pods.items() if wanted <= labels.items()]
        assert found == [one["metadata"]["name"]]


def test_volumes_that_are_mounted_exist(objects):
    claims = {
        one["metadata"]["name"]: [
            each["metadata"]["name"] for each in one["spec"]["volumeClaimTemplates"]
        ]
        for one in of_kind(objects, "StatefulSet")
    }
    for name, template in templates(objects).items():
        volumes = {one["name"] for one in template["spec"]["volumes"]} | set(claims.get(name, []))
        for one in containers(template):
            assert {mount["name"] for mount in one["volumeMounts"]} <= volumes


def test_more_replicas_have_a_budget_and_one_replica_has_none(objects):
    budgets = {one["metadata"]["name"] for one in of_kind(objects, "PodDisruptionBudget")}
    for one in of_kind(objects, "StatefulSet"):
        assert (one["metadata"]["name"] in budgets) is (one["spec"]["replicas"] > 1)


def test_only_electors_and_the_console_reach_control_ports(render):
    """The console has the group's key, which control ports demand."""
    objects = render([CHART / "ci/failover-values.yaml"])
    policies = of_kind(objects, "NetworkPolicy")
    rules = [
        rule
        for one in policies
        for rule in one["spec"]["ingress"]
        if {"port": 10913} in rule["ports"]
    ]
    assert len(rules) == 2
    for rule in rules:
        labels = [peer["podSelector"]["matchLabels"] for peer in rule["from"]]
        assert [it["app.kubernetes.io/component"] for it in labels] == ["elector", "console"]
    covered = [one["spec"]["podSelector"]["matchLabels"].items() for one in policies]
    for template in templates(objects).values():
        labels = template["metadata"]["labels"].items()
        assert any(selector <= labels for selector in covered)


def test_the_pod_monitor_selects_all_pods_with_metrics(render):
    """Alerts need jobs whose names begin with cometmq."""
    objects = render([CHART / "ci/failover-values.yaml"], settings=["lagReport.enabled=true"])
    (monitor,) = of_kind(objects, "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (relabeling,) = endpoint["relabelings"]
    assert (relabeling["targetLabel"], relabeling["replacement"]) == ("job", "cometmq-$1")
    assert relabeling["sourceLabels"] == ["__meta_kubernetes_pod_label_app_kubernetes_io_component"]
    found = set()
    for template in templates(objects).values():
        ports = [port for one in containers(template) for port in one.get("ports", ())]
        if endpoint["port"] in (port.get("name") for port in ports):
            labels = template["metadata"]["labels"]
            assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
            found.add(labels["app.kubernetes.io/component"])
    assert found == {
        "broker",
        "console",
        "elector",
        "exporter",
        "lag-collector",
        "namesrv",
        "txn-checker",
    }


def test_the_console_sees_the_electors_and_the_certificates_of_programs(render, tmp_path):
    tls = 'tls={"enabled": true, "mode": "enforcing", "existingSecret": "mq"}'
    key = 'groupKey={"mode": "required"}'
    objects = render([CHART / "ci/failover-values.yaml"], settings=[tls, key])
    files = settings_files(objects)
    text = files["mq-cometmq-console", "console.conf"]
    value = load(ConsoleSettings, prefix="UNSET", file=written(tmp_path, text), cli={}).value
    assert value.elector_config.split(";") == [
        f"/etc/cometmq/settings/elector-{it}.conf" for it in ("orders", "billing")
    ]
    assert value.program_configs.split(";") == [
        f"{it}=/etc/cometmq/programs/{it}.conf" for it in ("txn-checker", "exporter")
    ]
    (container,) = containers(templates(objects)["mq-cometmq-console"])
    mounts = {it["mountPath"]: it["name"] for it in container["volumeMounts"]}
    for group in ("orders", "billing"):
        own = files["mq-cometmq-console", f"elector-{group}.conf"]
        other = files[f"mq-cometmq-{group}-elector", "elector.conf"]
        assert own == other.replace("/group-key/", f"/group-key-{group}/")
        assert mounts[f"/etc/cometmq/group-key-{group}"] == f"group-key-{group}"
        elector = loaded(f"elector-{group}.conf", own, tmp_path).value
        assert (elector.broker_name, client_tls(elector).enable) == (group, True)
    volumes = templates(objects)["mq-cometmq-console"]["spec"]["volumes"]
    (programs,) = [
        it["projected"] for it in volumes if it["name"] == mounts["/etc/cometmq/programs"]
    ]
    maps = {it["configMap"]["name"] for it in programs["sources"]}
    assert maps == {"mq-cometmq-txn-checker", "mq-cometmq-exporter"}
    assert {(it, f"{it.removeprefix('mq-cometmq-')}.conf") for it in maps} <= files.keys()
    policies = {it["metadata"]["name"]: it["spec"] for it in of_kind(objects, "NetworkPolicy")}
    (control,) = [it for it in policies["mq-cometmq-orders"]["ingress"]
                  if it["ports"] == [{"port": 10913}]]  # fmt: skip
    assert [
        it["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for it in control["from"]
    ] == ["elector", "console"]


def written(folder, text):
    path = folder / "console.conf"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_console_without_electors_mounts_none(render):
    console = render(settings=['console={"enabled": true}'])
    text = settings_files(console)["mq-cometmq-console", "console.conf"]
    assert "electorConfig" not in text
    assert "programConfigs=txn-checker=" in text


def test_the_exporter_is_optional_and_may_have_an_account_of_its_own(render):
    assert "mq-cometmq-exporter" not in templates(render())
    assert account_of_exporter(render([CHART / "ci/secured-values.yaml"])) == "cometmq-admin"
    own = 'exporter={"enabled": true, "accountSecret": "cometmq-monitor"}'
    secured = render([CHART / "ci/secured-values.yaml"], settings=[own])
    assert account_of_exporter(secured) == "cometmq-monitor"


def account_of_exporter(objects):
    (container,) = containers(templates(objects)["mq-cometmq-exporter"])
    keys = {one["name"]: one.get("valueFrom") for one in container["env"]}
    return keys["COMETMQ_EXPORTER_ACCESS_KEY"]["secretKeyRef"]["name"]


def test_external_brokers_advertise_their_node_ports(render, tmp_path):
    objects = render([CHART / "ci/secured-values.yaml"])
    services = {one["metadata"]["name"]: one["spec"] for one in of_kind(objects, "Service")}
    files = settings_files(objects)
    for number, port in enumerate((30911, 30921)):
        spec = services[f"mq-cometmq-broker-a-{number}-external"]
        assert [one["nodePort"] for one in spec["ports"]] == [port]
        text = files["mq-cometmq-broker-a", f"broker-{number}.conf"]
        value = loaded(f"broker-{number}.conf", text, tmp_path).value
        assert value.listen_port == 10911
        assert value.advertised_addresses == f"{number}=:{port}"
    balanced = services["mq-cometmq-broker-b-0-external"]
    assert balanced["type"] == "LoadBalancer"
    text = files["mq-cometmq-broker-b", "broker-0.conf"]
    value = loaded("broker-0.conf", text, tmp_path).value
    assert value.advertised_addresses == "0=mq-b.example.com:10911"


def test_a_changed_setting_restarts_only_its_pods(render):
    before = templates(render())
    after = templates(render(settings=['namesrv.config={"brokerExpireMs": 90000}']))
    changed = [name for name in before if before[name] != after[name]]
    assert changed == ["mq-cometmq-namesrv"]


def test_large_numbers_stay_numbers(render, tmp_path: Path):
    objects = render(settings=['brokerGroups=[{"name":"a","config":{"maxMessageSize":8388608}}]'])
    text = settings_files(objects)["mq-cometmq-a", "broker-0.conf"]
    assert loaded("broker-0.conf", text, tmp_path).value.max_message_size == 8388608


def test_a_report_has_executors_only_if_their_number_is_given(render):
    alone = render([CHART / "ci/lag-values.yaml"])
    assert "--master" not in lag_arguments(alone)
    assert of_kind(alone, "Role") == []
    arguments = lag_arguments(render([CHART / "ci/lag-executors-values.yaml"]))
    assert arguments[arguments.index("--master") + 1].startswith("k8s://https://")
    settings = [one for key, one in pairwise(arguments) if key == "--conf"]
    assert "spark.executor.instances=2" in settings
    assert "spark.sql.shuffle.partitions=4" in settings
    assert "spark.kubernetes.driver.pod.name=$(POD_NAME)" in settings


def lag_arguments(objects):
    return templates(objects)[DRIVER]["spec"]["containers"][0]["args"]


def test_executors_and_drivers_reach_each_other_and_nothing_else_reaches_them(render):
    objects = render([CHART / "ci/lag-executors-values.yaml"])
    policies = of_kind(objects, "NetworkPolicy")
    (policy,) = (one for one in policies if one["metadata"]["name"] == "mq-cometmq-lag-executor")
    (rule,) = policy["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": policy["spec"]["podSelector"]}]
    (wanted,) = policy["spec"]["podSelector"]["matchExpressions"]
    found = templates(objects)
    for name in (DRIVER, "mq-cometmq-lag-executor"):
        labels = found[name]["metadata"]["labels"]
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
        assert labels[wanted["key"]] in wanted["values"]
    settings = dict(
        one.split("=", 1) for key, one in pairwise(lag_arguments(objects)) if key == "--conf"
    )
    ports = {settings["spark.driver.port"], settings["spark.blockManager.port"]}
    assert {str(one["port"]) for one in rule["ports"]} == ports


FAILOVER = CHART / "ci/failover-values.yaml"


def key_parts(objects, group):
    """Return the Secret of a group's key, the names of the Secrets that its pods mount, and the
    settings of its brokers and its elector.
    """
    secrets = [
        one for one in of_kind(objects, "Secret") if one["metadata"]["name"].endswith("-key")
    ]
    mounted = {
        name: volume["secret"]["secretName"]
        for name, template in templates(objects).items()
        for volume in template["spec"].get("volumes", ())
        if volume["name"] == "group-key" and group in name
    }
    texts = {
        name: text for (place, name), text in settings_files(objects).items() if group in place
    }
    return [one for one in secrets if group in one["metadata"]["name"]], mounted, texts


@pytest.mark.parametrize("group", ["orders", "billing"])
def test_a_group_proves_a_key_of_its_own_that_upgrades_keep(render, group):
    (secret,), mounted, texts = key_parts(render([FAILOVER]), group)
    name = secret["metadata"]["name"]
    assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    (key,) = parse_keys(b64decode(secret["data"]["group.key"]), name)
    assert len(key) == 44
    assert mounted == {f"mq-cometmq-{group}": name, f"mq-cometmq-{group}-elector": name}
    for text in texts.values():
        assert "groupKeyFile=/etc/cometmq/group-key/group.key" in text
        assert "groupKeyRequired" not in text


def test_the_upgrade_of_a_group_without_a_key_gives_it_to_the_brokers_first(render):
    objects = render([FAILOVER], ['groupKey.mode="optional"'])
    _, mounted, texts = key_parts(objects, "orders")
    assert list(mounted) == ["mq-cometmq-orders"]
    assert "groupKeyFile" not in texts.pop("elector.conf")
    assert len(texts) == 3
    assert all("groupKeyRequired=false" in text for text in texts.values())


def test_a_key_may_be_given_and_single_brokers_have_none(render):
    secrets, mounted, _ = key_parts(
        render([FAILOVER], ['groupKey.existingSecret="ours"']), "orders"
    )
    assert secrets == []
    assert set(mounted.values()) == {"ours"}
    assert "group-key" not in str(render())
