"""``moet doctor``: what a machine must be before a recipe may be served, looked at without changing anything.

    report.py     a finding and all of them; subject.py what is examined
    nvml.py       the border to the GPU's driver
    gpus.py       driver, capability, memory and who holds it, PCIe link
    software.py   versions against the pins, compilers that serving needs at run time
    memory.py     NUMA node, memlock, host memory, cgroups
    storage.py    planes cache, correction pack, disk space
    launch.py     refused options, checkpoint, port, program, audit
    examine.py    all of them in order; commands.py the same as a command

A check that cannot be made here says why and counts as skipped, never as passed. No torch is imported.
"""

from .examine import examine
from .report import Check, Report, Status

__all__ = ["Check", "Report", "Status", "examine"]
