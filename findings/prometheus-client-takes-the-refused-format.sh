#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# prometheus-client 0.26.0. Its negotiation looks at the names in an Accept header, not at their
# quality: a scraper that prefers the text format (q=0.9) over OpenMetrics (q=0.1), or refuses
# OpenMetrics (q=0), gets OpenMetrics. And the constant CONTENT_TYPE_LATEST is text 1.0.0 now, so a
# page that sends it beside generate_latest() announces a version that a scraper of 0.0.4 did not ask for.
. "$(dirname "$0")/common.sh"
python_packages prometheus-client==0.26.0
chosen() { venv/bin/python -c 'import sys; from prometheus_client.exposition import choose_encoder; print(choose_encoder(sys.argv[1])[1].split(";")[0])' "$1"; }
expect "text preferred" application/openmetrics-text "$(chosen 'text/plain;version=0.0.4;q=0.9,application/openmetrics-text;version=1.0.0;q=0.1')"
expect "OpenMetrics refused" application/openmetrics-text "$(chosen 'text/plain;version=0.0.4,application/openmetrics-text;version=1.0.0;q=0')"
expect "only text asked for" text/plain "$(chosen 'text/plain;version=0.0.4')"
expect "CONTENT_TYPE_LATEST" "text/plain; version=1.0.0; charset=utf-8" \
    "$(venv/bin/python -c 'import prometheus_client as p; print(p.CONTENT_TYPE_LATEST)')"
