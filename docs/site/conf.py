# SPDX-License-Identifier: Apache-2.0
"""Settings of Sphinx for the documentation as a site: `make docs`."""

project = "CometMQ"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "CometMQ"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
highlight_language = "text"
myst_heading_anchors = 4
myst_links_external_new_tab = False
