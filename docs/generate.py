# SPDX-License-Identifier: Apache-2.0
"""Write everything that is derived from the code.

Reference pages are not in git: `make docs` writes them and builds a site with them. CRDs, schemas
and the READMEs of the charts are in git, because users take them from there. `docs/generate.py`
writes all of them, `docs/generate.py commands` only that page. With `--check`, nothing is written,
and the exit status is 1 if a file that is in git is out of date. `PYTHONPATH` must contain
`spark/src`, because this environment does not have the Spark package.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from generators import (
    cli,
    client_api,
    client_options,
    client_stubs,
    codes,
    commands,
    crd,
    events,
    helm_values,
    limits,
    metrics,
    modules,
    proofs,
    settings,
    spark,
)
from generators.helm_values import OPERATOR, SUITE

from cometmq.operator.api_types.crd import DEFINITIONS, as_yaml
from cometmq.runtime.programs import COMMANDS
from cometmq.spark.lag.output.forms import SCHEMA_PATH, json_schema

DOCS: Final = Path(__file__).parent
REFERENCE: Final = DOCS / "reference"


class Page(NamedTuple):
    """One generated file: its path and its generator."""

    path: Path
    render: Callable[[], str]

    @property
    def is_in_git(self) -> bool:
        return self.path.parent != REFERENCE


CRD_FOLDERS: Final = {
    "crd": "deploy/crds",
    "helm-operator-crd": "deploy/helm/cometmq-operator/files",
}

PAGES: Final[Mapping[str, Page]] = {
    "commands": Page(REFERENCE / "commands.md", commands.commands_page),
    "proofs": Page(REFERENCE / "proofs.md", proofs.page),
    "codes": Page(REFERENCE / "codes.md", codes.page),
    **{
        f"settings-{name}": Page(REFERENCE / f"settings-{name}.md", partial(settings.page, name))
        for name in COMMANDS
    },
    "client-options": Page(REFERENCE / "client-options.md", client_options.client_options_page),
    "client-api": Page(REFERENCE / "client-api.md", client_api.page),
    "limits": Page(REFERENCE / "limits.md", limits.page),
    "modules": Page(REFERENCE / "modules.md", modules.page),
    "metrics": Page(REFERENCE / "metrics.md", metrics.page),
    "events": Page(REFERENCE / "events.md", events.page),
    "helm-cometmq": Page(REFERENCE / "helm-cometmq.md", partial(helm_values.page, SUITE)),
    "helm-schema": Page(SUITE.schema, partial(helm_values.schema, SUITE)),
    "helm-cometmq-operator": Page(
        REFERENCE / "helm-cometmq-operator.md", partial(helm_values.page, OPERATOR)
    ),
    "helm-operator-schema": Page(OPERATOR.schema, partial(helm_values.schema, OPERATOR)),
    "spark-options": Page(REFERENCE / "spark-options.md", spark.options_page),
    "spark-columns": Page(REFERENCE / "spark-columns.md", spark.columns_page),
    "spark-metrics": Page(REFERENCE / "spark-metrics.md", spark.metrics_page),
    "spark-schema": Page(SCHEMA_PATH, lambda: json_schema().decode()),
    "cli": Page(REFERENCE / "cli.md", cli.page),
    "client-names": Page(client_stubs.PACKAGE, client_stubs.package),
    "client-blocking": Page(client_stubs.BLOCKING, client_stubs.blocking),
    **{
        f"{name}{'' if one.kind == 'BrokerGroup' else '-' + one.kind.lower()}": Page(
            DOCS.parent / folder / f"{one.plural}.yaml", partial(as_yaml, one)
        )
        for one in DEFINITIONS
        for name, folder in CRD_FOLDERS.items()
    },
    **{
        one.kind.lower(): Page(REFERENCE / f"{one.kind.lower()}.md", partial(crd.page, one))
        for one in DEFINITIONS
    },
    "mqadmin": Page(REFERENCE / "mqadmin.md", cli.mqadmin_page),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", choices=[[], *PAGES], help="default: all")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if stale")
    arguments = parser.parse_args()
    stale = []
    for name in arguments.pages or PAGES:
        page = PAGES[name]
        if arguments.check and not page.is_in_git:
            continue
        text = page.render()
        if page.path.exists() and page.path.read_text(encoding="utf-8") == text:
            continue
        stale.append(str(page.path.relative_to(DOCS.parent)))
        if not arguments.check:
            page.path.parent.mkdir(parents=True, exist_ok=True)
            page.path.write_text(text, encoding="utf-8")
    verb = "out of date (run `make generate`)" if arguments.check else "written"
    for path in stale:
        print(f"{verb}: {path}")
    return 1 if stale and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
