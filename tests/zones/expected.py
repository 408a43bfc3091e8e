"""When daily jobs run in zones whose clocks change, by Python's zoneinfo: writes src/scheduler/zones.csv.

The rule is croner's: a fixed time runs at the first instant after a gap, and in the first pass of an overlap. Each line
is a zone, a local time, the first and the last local date of a span, and the seconds from that date's midnight in UTC to
the run. Without them there is no run: the day was not.
"""

import datetime as d
import pathlib
import zoneinfo

ZONES = [
    ("America/New_York", 2026),
    ("Europe/London", 2026),
    ("Australia/Lord_Howe", 2026),
    ("Pacific/Apia", 2011),
    ("America/Sao_Paulo", 2018),
]
TIMES = [(0, 0), (1, 30), (2, 0), (2, 30)]


def run(zone, naive):
    """The instant, or none."""
    instant = naive.replace(tzinfo=zone, fold=0).astimezone(d.timezone.utc)
    if instant.astimezone(zone).replace(tzinfo=None) == naive:
        return int(instant.timestamp())
    before, after = int(instant.timestamp()) - 26 * 3600, int(instant.timestamp()) + 26 * 3600
    local = lambda seconds: d.datetime.fromtimestamp(seconds, zone).replace(tzinfo=None)
    while after - before > 1:
        middle = (before + after) // 2
        before, after = (middle, after) if local(middle) < naive else (before, middle)
    return after if local(after).date() == naive.date() else None


def spans():
    for name, year in ZONES:
        zone = zoneinfo.ZoneInfo(name)
        for hour, minute in TIMES:
            found, day = [], d.date(year, 1, 1)
            while day.year == year:
                at = run(zone, d.datetime(year, day.month, day.day, hour, minute))
                midnight = int(d.datetime(year, day.month, day.day, tzinfo=d.timezone.utc).timestamp())
                offset = "" if at is None else at - midnight
                if found and found[-1][2] == offset:
                    found[-1][1] = day
                else:
                    found.append([day, day, offset])
                day += d.timedelta(days=1)
            for first, last, offset in found:
                yield f"{name},{hour:02}:{minute:02},{first},{last},{offset}\n"


target = pathlib.Path(__file__).parents[2] / "src" / "scheduler" / "zones.csv"
target.write_text("".join(spans()))
