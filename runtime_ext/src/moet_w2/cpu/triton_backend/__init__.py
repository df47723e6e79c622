"""A Triton backend called ``cpu`` that runs kernels in Triton's own interpreter.

vLLM takes Model Runner V2 on a CPU only when Triton lists a backend of this name, and Triton lists what the entry
point group ``triton.backends`` names. Triton reads that group while ``import triton`` is under way, before any kernel
exists, so this is the one place where the interpreter can be chosen without an environment variable: kernels that
are decorated afterwards become interpreted functions.

The interpreter is right but slow. Kernels on the path of every token have plain replacements (``..kernels``); the
interpreter is what every other kernel falls back to, so that a rarely used sampling feature works too.

This is also the earliest point at which this package runs in a vLLM process, before vLLM picks the build of its C
extension. A limit on the instruction set (VLLM_MOE_W2_CPU_ISA) is therefore imposed here.

On a build of vLLM for another device this package does nothing: the backend never calls itself active, and the
interpreter stays off.
"""

from importlib.metadata import PackageNotFoundError, version


def is_cpu_build() -> bool:
    """Whether the installed vLLM was built for CPUs, by the rule that vLLM itself applies: its version says so."""
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:
        return False


def choose_interpreter() -> None:
    """Make every Triton kernel decorated from now on an interpreted one."""
    from triton import knobs

    knobs.runtime.interpret = True


def impose_limit() -> None:
    """Impose the limit on the instruction set, if the settings name one."""
    from ... import config
    from ...errors import MoetError
    from .. import capability

    try:
        capability.impose(capability.detect(config.load().cpu_isa))
    except MoetError:
        # An error raised here would only make Triton look broken. The plugin reads the same settings a moment later
        # and reports the same error as itself.
        return


if is_cpu_build():
    choose_interpreter()
    impose_limit()
