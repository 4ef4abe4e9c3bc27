"""Which tests `make test` leaves out: every name in the lists of conftest.py is that of a test."""

import re
from pathlib import Path

from tests.conftest import FULL, KEPT

TESTS = Path(__file__).parent


def test_every_beginning_in_the_lists_is_that_of_a_test():
    for beginning in (*FULL, *KEPT):
        path, _, name = beginning.partition("::")
        found = [TESTS / path] if path.endswith("/") else [*TESTS.glob(f"{path.removesuffix('.py')}*.py")]
        assert found, beginning
        assert found[0].exists(), beginning
        if name := name.partition("[")[0]:
            assert any(re.search(rf"^def {name}", one.read_text(), re.MULTILINE) for one in found), beginning
