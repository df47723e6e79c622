"""``moet plan --measure`` on a GPU: rates that a card and a link can have, and nothing left behind."""

import pytest
import torch

from moet_w2.host_memory import open_allocations
from moet_w2.planner import measure

pytestmark = pytest.mark.gpu


def test_the_machine_is_measured():
    before = torch.cuda.memory_allocated()
    found = measure.measure()
    machine = found.machine
    assert machine.cuda_bytes == torch.cuda.mem_get_info()[1]
    assert machine.sm == torch.cuda.get_device_capability()[0]
    assert machine.link_gbs is not None and 2 < machine.link_gbs < machine.hbm_gbs
    assert 100 < machine.hbm_gbs < 20_000
    assert torch.cuda.memory_allocated() == before and not open_allocations()
