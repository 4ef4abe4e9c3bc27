"""Print where two records differ, but for what `listed.json` names with a reason; exit with 1 if anything does.

Forecasts are sums of seconds, which may be added up in another order: they are compared to 12 digits, all else exactly.
"""

import json
import math
import sys
from pathlib import Path

LISTED = Path(__file__).parent / "listed.json"


def differences(before, after, where=""):
    """Yield the place of each difference, and both values."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            yield from differences(before.get(name, "(none)"), after.get(name, "(none)"), f"{where}/{name}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, f"{where}/{number}")
    elif where.startswith("/forecasts") and isinstance(before, float) and isinstance(after, float):
        if not math.isclose(before, after, rel_tol=1e-12):
            yield where, before, after
    elif before != after:
        yield where, before, after


def main():
    before, after = (json.loads(Path(path).read_text()) for path in sys.argv[1:])
    listed = json.loads(LISTED.read_text())
    found = [
        one
        for one in differences({name: before[name] for name in after}, after)
        if not one[0].startswith(tuple(listed))
    ]
    for where, old, new in found:
        print(f"{where}\n  before {str(old)[:300]}\n  after  {str(new)[:300]}")
    print(f"{len(found)} differences; {len(listed)} listed")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
