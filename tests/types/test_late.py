"""Values that are read late."""

import torch

from lightning_tgnn.types import LateValue, is_asynchronous, late


def test_a_device_that_computes_behind_the_host_is_told_from_the_cpu(monkeypatch):
    assert not is_asynchronous(torch.zeros(1))
    monkeypatch.setattr(late, "_SYNCHRONOUS", set())
    assert is_asynchronous(torch.zeros(1))


def test_a_number_is_the_one_that_there_was():
    value = torch.ones(2)
    number = LateValue(value)
    value.zero_()
    assert number.read().tolist() == [1.0, 1.0]
