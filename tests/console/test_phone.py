# SPDX-License-Identifier: Apache-2.0
"""On a phone, a table shows that it goes on beyond its edge."""

from base64 import b64decode
from io import BytesIO

import pytest
from PIL import Image

EDGE = """
(() => {
  const table = [...document.querySelectorAll("main .scroll")].at(-1);
  table.scrollIntoView();
  table.scrollLeft = %s;
  const {right, bottom} = table.getBoundingClientRect();
  return [right - 8, bottom + scrollY - 8, table.scrollWidth > table.clientWidth];
})()
"""


def brightness(tab, at):
    """Return the mean brightness inside the right edge of the last table, scrolled there."""
    right, bottom, scrolls = tab.run(EDGE % at)
    assert scrolls
    clip = {"x": right, "y": bottom, "width": 6, "height": 4, "scale": 1}
    shot = tab.call("Page.captureScreenshot", clip=clip)
    image = Image.open(BytesIO(b64decode(shot["data"]))).convert("L")
    return image.resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_table_casts_a_shade_until_its_end(tab, place, theme):
    tab.theme(theme)
    tab.size(390, 800)
    tab.open(f"{place.url}/group?name=billing")
    begin, end = brightness(tab, 0), brightness(tab, "table.scrollWidth")
    assert abs(begin - end) > 20
