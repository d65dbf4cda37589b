# SPDX-License-Identifier: Apache-2.0
"""`cometmq generate`: files for Grafana, Prometheus, KEDA and systemd, and a first program."""

import json
import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import typer

from cometmq.cli.connecting import wrong_usage
from cometmq.cli.lazy import App
from cometmq.cli.output import AsJson, print_facts, print_rows
from cometmq.cli.say import say
from cometmq.client.message import check_group, check_topic
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.names import DEFAULT_CLUSTER, retry_topic
from cometmq.remoting.spelling import did_you_mean

TEMPLATES: Final = files("cometmq.cli") / "templates"
UNITS: Final = {"broker": "cometmq-broker.service", "namesrv": "cometmq-namesrv.service"}
_TARGET: Final = re.compile(r"([a-z-]+)=([\w.\[\]:-]+:\d{1,5}(?:,[\w.\[\]:-]+:\d{1,5})*)")
_WORD: Final = re.compile(r"[\w./@-]+")
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_URL: Final = re.compile(r"https?://[\w.\[\]:/@%~-]+")

app = App("Print files for Grafana, Prometheus, KEDA and systemd, and a program.")


@app.command()
def grafana(
    board: Annotated[
        str | None, typer.Argument(help="Print this dashboard; without it, list them.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", file_okay=False, help="Write all into this folder.")
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Print a dashboard for Grafana 10 or newer, or write all of them.

    \b
    EXAMPLES
      cometmq generate grafana cometmq-overview > overview.json
      cometmq generate grafana --out /var/lib/grafana/dashboards
    """
    boards = {it.name.removesuffix(".json"): it for it in (TEMPLATES / "dashboards").iterdir()}
    if board is not None:
        if board not in boards:
            raise wrong_usage(f"there is no dashboard {board}{did_you_mean(board, boards)}")
        say(boards[board].read_text(encoding="utf-8"), nl=False)
        return
    texts = {name: it.read_text(encoding="utf-8") for name, it in sorted(boards.items())}
    if out is None:
        rows = [[name, json.loads(text)["title"]] for name, text in texts.items()]
        print_rows(("Dashboard", "Title"), rows, as_json=as_json)
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (out / f"{name}.json").write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"cannot write to {out}: {error.strerror}") from error
    print_facts({"folder": str(out), "written": list(texts)}, as_json=as_json)


@app.command()
def prometheus(
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            metavar="PROGRAM=HOST:PORT[,...]",
            help="HTTP ports (adminHttpPort) of broker, namesrv, txn-checker, elector, exporter or"
            " operator; may be repeated.",
        ),
    ] = None,
    *,
    rules: Annotated[bool, typer.Option("--rules", help="Print the alert rules.")] = False,
) -> None:
    """Print the configuration of a Prometheus that scrapes the programs, or the alert rules.

    \b
    EXAMPLES
      cometmq generate prometheus --rules > alerts.yaml
      cometmq generate prometheus --target broker=b0:8080,b1:8080 > prometheus.yml
    """
    if rules:
        say((TEMPLATES / "alerts.yaml").read_text(encoding="utf-8"), nl=False)
        return
    if not target:
        raise wrong_usage("give --rules, or the --target of each program, as broker=HOST:8080")
    say("rule_files: [alerts.yaml]  # cometmq generate prometheus --rules > alerts.yaml")
    say("scrape_configs:")
    for text in target:
        found = _TARGET.fullmatch(text)
        if found is None:
            raise wrong_usage(f"--target {text!r}: must be PROGRAM=HOST:PORT[,HOST:PORT...]")
        say(f"  - job_name: cometmq-{found[1]}\n    static_configs:")
        say(f"      - targets: {json.dumps(found[2].split(','))}")


@app.command()
def keda(  # one parameter per option
    group: Annotated[str, typer.Argument(help="Consumer group.")],
    topic: Annotated[list[str], typer.Argument(help="Topics that the group consumes.")],
    *,
    deployment: Annotated[
        str, typer.Option(help="Deployment of the consumers; by default, named after the group.")
    ] = "",
    cluster: Annotated[str, typer.Option("-c", "--cluster", help="Cluster.")] = DEFAULT_CLUSTER,
    prometheus_url: Annotated[
        str, typer.Option("--prometheus", help="Prometheus that scrapes the brokers.")
    ] = "http://prometheus-operated.monitoring.svc:9090",
    threshold: Annotated[int, typer.Option(min=1, help="Unread messages per replica.")] = 1000,
    replicas: Annotated[
        int, typer.Option("--max", min=1, help="Most replicas: the number of queues.")
    ] = 16,
) -> None:
    """Print a ScaledObject that scales consumers by the lag of their group.

    \b
    EXAMPLE
      cometmq generate keda billing Orders_Paid --max 16 | kubectl apply -f -
    """
    check_group(group)
    for name in topic:
        check_topic(name)
    deployment = deployment or group.lower().replace("_", "-")
    for option, value, pattern in (
        ("--deployment", deployment, _LABEL), ("--prometheus", prometheus_url, _URL),
        ("--cluster", cluster, _WORD),
    ):  # fmt: skip
        if not pattern.fullmatch(value):
            raise wrong_usage(f"{option} {value!r} is not valid here")
    topics = "|".join(it.replace("|", r"\\|") for it in (*topic, retry_topic(group)))
    text = (TEMPLATES / "keda.yaml").read_text(encoding="utf-8")
    for old, new in (
        ("name: billing", f"name: {deployment}"),
        ("http://prometheus-operated.monitoring.svc:9090", prometheus_url),
        (f'cluster="{DEFAULT_CLUSTER}"', f'cluster="{cluster}"'),
        ('group="billing"', f'group="{group}"'),
        ("Orders_Paid|%RETRY%billing", topics),
        ("The queues of Orders_Paid", f"The queues of {' and '.join(topic)}"),
        ("maxReplicaCount: 16", f"maxReplicaCount: {replicas}"),
        ('threshold: "1000"', f'threshold: "{threshold}"'),
    ):
        assert old in text
        text = text.replace(old, new)
    say(text, nl=False)


@app.command("app")
def starter(
    topic: Annotated[str, typer.Argument(help="Topic to send to and to consume.")],
    group: Annotated[str, typer.Argument(help="Consumer group.")],
) -> None:
    """Print a Python program that sends to a topic and consumes it.

    \b
    EXAMPLE
      cometmq generate app orders billing > app.py
    """
    check_topic(topic)
    check_group(group)
    text = (TEMPLATES / "app.txt").read_text(encoding="utf-8").partition("\n")[2]  # the licence
    say(text.replace("ORDERS", topic).replace("BILLING", group), nl=False)


@app.command()
def systemd(
    program: Annotated[str, typer.Argument(help="broker or namesrv.")],
    *,
    config: Annotated[
        str, typer.Option("-c", "--config", help="Settings file; by default in /etc/cometmq.")
    ] = "",
    user: Annotated[str, typer.Option(help="User and group that run the program.")] = "cometmq",
    command: Annotated[
        str, typer.Option(help="Path of cometmq; by default, of this command.")
    ] = "",
) -> None:
    """Print a hardened unit that runs a program.

    \b
    EXAMPLE
      cometmq generate systemd broker > /etc/systemd/system/cometmq-broker.service
    """
    if program not in UNITS:
        hint = did_you_mean(program, UNITS)
        raise wrong_usage(f"{program!r} is not broker or namesrv{hint}")
    config = config or f"/etc/cometmq/{program}.conf"
    command = command or str(Path(sys.argv[0]).absolute())
    for option, value in (("--config", config), ("--user", user), ("--command", command)):
        if not _WORD.fullmatch(value):
            raise wrong_usage(f"{option} {value!r}: a unit takes letters, digits and . / @ _ -")
    text = (TEMPLATES / UNITS[program]).read_text(encoding="utf-8")
    for old, new in (
        (f"/opt/cometmq/bin/cometmq {program} -c /etc/cometmq/{program}.conf",
         f"{command} {program} -c {config}"),
        ("User=cometmq\nGroup=cometmq", f"User={user}\nGroup={user}"),
        ("ReadWritePaths=/etc/cometmq", f"ReadWritePaths={Path(config).parent}"),
    ):  # fmt: skip
        assert old in text
        text = text.replace(old, new)
    say(text, nl=False)
