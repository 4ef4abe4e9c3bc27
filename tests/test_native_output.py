"""What libraries write past Python is left out, and nothing else."""

import os
import threading

import pytest

from lightning_tgnn.native_output import without_native_output


@pytest.mark.parametrize(("written", "shown"), [(b"[c10d] frame #0\n", ""), (b"mine\n", "mine\n"), (b"", "")])
def test_only_what_holds_the_mark_is_left_out(written, shown, capfd):
    with without_native_output("[c10d]"), without_native_output("[c10d]"):
        os.write(2, written)
    assert capfd.readouterr().err == shown


def test_threads_do_not_mix_up_what_is_kept(capfd):
    def ask(number):
        for _ in range(50):
            with without_native_output("[c10d]"):
                os.write(2, b"[c10d]" if number else b"1")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.write(2, b"end")
    assert capfd.readouterr().err == "1" * 50 + "end"
