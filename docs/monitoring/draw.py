# SPDX-License-Identifier: MIT
"""Draws dashboard.json as a picture without Grafana, with the panels' queries to Prometheus.

    pip install matplotlib
    python3 draw.py http://localhost:9090 15m dashboard.svg
"""

import json
import pathlib
import re
import sys
import time
import urllib.parse
import urllib.request

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.fonttype"] = "none"
import matplotlib.dates
import matplotlib.pyplot as pyplot

SECONDS = {"s": 1, "m": 60, "h": 3600}
COLORS = ["#5b8ff9", "#e8853d", "#3fae7a", "#b07ad8", "#d6a321", "#d64e5e"]


def fetch(prometheus, path, **parameters):
    url = f"{prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url) as reply:
        return json.load(reply)["data"]["result"]


def format_value(value, unit):
    """Formats a number with its unit, as a panel shows it."""
    if unit == "µs":
        value, unit = value / 1e6, "s"
    elif unit == "ms":
        value, unit = value / 1e3, "s"
    elif unit != "s":
        return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"
    for factor, name in [(1, "s"), (1e3, "ms"), (1e6, "µs")]:
        if value * factor >= 1:
            return f"{value * factor:.3g} {name}"
    return "0"


def format_legend(text, labels):
    return re.sub(r"\{\{(\w+)\}\}", lambda label: labels.get(label[1], ""), text)


def draw_panel(axes, panel, prometheus, begin, end):
    unit = panel["fieldConfig"]["defaults"]["unit"]
    axes.set_title(panel["title"], fontsize=8, loc="left", fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    drawn = 0
    for target in panel["targets"]:
        query = target["expr"].replace("$server", ".*").replace("$__rate_interval", "1m")
        if panel["type"] == "stat":
            results = fetch(prometheus, "query", query=query, time=end)
            value = float(results[0]["value"][1]) if results else float("nan")
            axes.axis("off")
            axes.text(0.5, 0.4, format_value(value, unit), ha="center", va="center", fontsize=20, color=COLORS[2])
            continue
        step = max(1, (end - begin) // 150)
        for series in fetch(prometheus, "query_range", query=query, start=begin, end=end, step=step):
            times = [at / 86400 for at, _ in series["values"]]
            values = [float(value) for _, value in series["values"]]
            name = format_legend(target["legendFormat"], series["metric"])
            axes.plot(times, values, color=COLORS[drawn % len(COLORS)], linewidth=1, label=name)
            drawn += 1
    if panel["type"] != "stat":
        axes.xaxis.set_major_formatter(matplotlib.dates.DateFormatter("%H:%M"))
        axes.yaxis.set_major_formatter(lambda value, _: format_value(value, unit))
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=7)
        axes.grid(axis="y", alpha=0.3)
        axes.legend(fontsize=6, ncols=3, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.1))


def main():
    prometheus, period, picture = sys.argv[1:]
    dashboard = json.loads((pathlib.Path(__file__).parent / "dashboard.json").read_text())
    end = int(time.time())
    begin = end - int(period[:-1]) * SECONDS[period[-1]]
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    rows = max(place["y"] + place["h"] for place in places)
    figure = pyplot.figure(figsize=(13, rows * 0.28))
    grid = figure.add_gridspec(rows, 24, wspace=3.2, hspace=1.6, left=0.05, right=0.98, top=0.98, bottom=0.04)
    for panel, place in zip(dashboard["panels"], places):
        # The last two rows are for the legend.
        height = place["h"] - (2 if panel["type"] != "stat" else 0)
        axes = figure.add_subplot(grid[place["y"] : place["y"] + height, place["x"] : place["x"] + place["w"]])
        draw_panel(axes, panel, prometheus, begin, end)
    figure.savefig(picture)


main()
