"""The only module vLLM imports. Light on purpose: vLLM logs an import error here and carries on without us."""

from __future__ import annotations

_registered = False


def register() -> None:
    """Attach everything to vLLM. Runs in every vLLM process, several times; initialises no device.

    Raises:
        MoetError: a setting is unknown or malformed, or an attachment did not take hold.
    """
    global _registered
    if _registered:
        return
    from vllm import envs as vllm_envs
    from vllm.config import LoadConfig
    from vllm.model_executor.layers.quantization import get_quantization_config, register_quantization_config
    from vllm.model_executor.model_loader import get_model_loader, register_model_loader

    from . import config, cpu, dsml, envs
    from .errors import UnsupportedError

    settings = config.load()
    envs.declare(vllm_envs.environment_variables)
    cpu.attach(settings.cpu_isa)

    from .config import LOAD_FORMAT, SYNTHETIC_FORMAT
    from .loader import MoetLoader
    from .metrics import collector, folder, prompt_rate
    from .quantization import NAME, MoetW2Config
    from .synthetic_loader import SyntheticLoader

    register_quantization_config(NAME)(MoetW2Config)
    if get_quantization_config(NAME) is not MoetW2Config:
        raise UnsupportedError(f"vLLM did not take the quantization method {NAME}; this vLLM is not the pinned one")
    for name, loader in ((LOAD_FORMAT, MoetLoader), (SYNTHETIC_FORMAT, SyntheticLoader)):
        register_model_loader(name)(loader)
        if type(get_model_loader(LoadConfig(load_format=name))) is not loader:
            raise UnsupportedError(f"vLLM did not take the load format {name}; this vLLM is not the pinned one")
    if settings.enabled:
        dsml.attach()
        collector.attach()
        prompt_rate.attach(folder.announce())
    _registered = True
