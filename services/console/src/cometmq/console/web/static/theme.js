// SPDX-License-Identifier: Apache-2.0
// Sets the chosen theme before the page is painted.
"use strict";
try {
  const chosen = localStorage.getItem("cometmq-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch { /* storage is disabled: the system's theme applies */ }
