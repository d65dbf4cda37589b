# SPDX-License-Identifier: Apache-2.0
"""Write the reference pages that are derived from the code.

`docs/generate.py` writes all pages; `docs/generate.py commands` writes only that page. With
`--check`, nothing is written, and the exit status is 1 if a page is out of date.
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
    codes,
    commands,
    crd,
    events,
    helm_values,
    limits,
    metrics,
    proofs,
    settings,
)
from generators.helm_values import OPERATOR, SUITE

from cometmq.operator.crd import DEFINITIONS, as_yaml

DOCS: Final = Path(__file__).parent


class Page(NamedTuple):
    """One generated page: its path and its generator."""

    path: Path
    render: Callable[[], str]


CRD_FOLDERS: Final = {
    "crd": "deploy/crds",
    "helm-operator-crd": "deploy/helm/cometmq-operator/files",
}

PAGES: Final[Mapping[str, Page]] = {
    "commands": Page(DOCS / "protocol" / "commands.md", commands.commands_page),
    "compatibility": Page(proofs.PAGE, proofs.page),
    "codes": Page(DOCS / "reference" / "codes.md", codes.page),
    "settings-broker": Page(DOCS / "reference" / "settings-broker.md", settings.broker_page),
    "settings-txn-checker": Page(
        DOCS / "reference" / "settings-txn-checker.md", settings.txn_checker_page
    ),
    "settings-elector": Page(DOCS / "reference" / "settings-elector.md", settings.elector_page),
    "settings-exporter": Page(DOCS / "reference" / "settings-exporter.md", settings.exporter_page),
    "settings-namesrv": Page(DOCS / "reference" / "settings-namesrv.md", settings.namesrv_page),
    "client-options": Page(
        DOCS / "reference" / "client-options.md", client_options.client_options_page
    ),
    "client-api": Page(DOCS / "reference" / "client-api.md", client_api.page),
    "limits": Page(DOCS / "reference" / "limits.md", limits.page),
    "metrics": Page(DOCS / "reference" / "metrics.md", metrics.page),
    "events": Page(DOCS / "reference" / "events.md", events.page),
    "helm-readme": Page(SUITE.readme, partial(helm_values.readme, SUITE)),
    "helm-schema": Page(SUITE.schema, partial(helm_values.schema, SUITE)),
    "helm-operator-readme": Page(OPERATOR.readme, partial(helm_values.readme, OPERATOR)),
    "helm-operator-schema": Page(OPERATOR.schema, partial(helm_values.schema, OPERATOR)),
    "cli": Page(DOCS / "reference" / "cli.md", cli.page),
    **{
        f"{name}{'' if one.kind == 'BrokerGroup' else '-' + one.kind.lower()}": Page(
            DOCS.parent / folder / f"{one.plural}.yaml", partial(as_yaml, one)
        )
        for one in DEFINITIONS
        for name, folder in CRD_FOLDERS.items()
    },
    **{
        one.kind.lower(): Page(
            DOCS / "reference" / f"{one.kind.lower()}.md", partial(crd.page, one)
        )
        for one in DEFINITIONS
    },
    "mqadmin": Page(DOCS / "reference" / "mqadmin.md", cli.mqadmin_page),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", choices=[[], *PAGES], help="default: all")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if stale")
    arguments = parser.parse_args()
    stale = []
    for name in arguments.pages or PAGES:
        page = PAGES[name]
        text = page.render()
        is_current = page.path.exists() and page.path.read_text(encoding="utf-8") == text
        if is_current:
            continue
        stale.append(str(page.path.relative_to(DOCS.parent)))
        if not arguments.check:
            page.path.parent.mkdir(parents=True, exist_ok=True)
            page.path.write_text(text, encoding="utf-8")
    verb = "out of date (run `make docs`)" if arguments.check else "written"
    for path in stale:
        print(f"{verb}: {path}")
    return 1 if stale and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
