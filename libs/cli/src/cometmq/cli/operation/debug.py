# SPDX-License-Identifier: Apache-2.0
"""`cometmq debug`: an archive of the evidence that `cometmq doctor` examines."""

from cometmq.cli.operation.doctor import bundle_app

app = bundle_app
