"""What vLLM calls at its start: look, decide, patch, say so in one line."""
import logging

from . import _targets as targets
from ._stats import STATS

LOG = logging.getLogger("vllm.fewhead")

_registered = None  # the Router, once something was decided


def router():
    """The Router of this process; None before register() and where fewhead does not load."""
    return _registered


def vllm_version():
    """vLLM's version as its metadata or module says; None where there is no vLLM."""
    try:
        import vllm
    except ImportError:
        return None
    return getattr(vllm, "__version__", None)


def _patch_family(family, version, router):
    """Patch a family whole; Declined leaves it as it was."""
    from . import _patch as patch
    module, found = targets.load(family, version)
    if any(patch.original(function) is not function for function in found.values()):
        return
    if family.name == "v32":
        replaced = patch.patch_v32(module, found, router)
    else:
        replaced = patch.patch_v4(module, found, router, family.name)
    for path, function in replaced.items():
        targets.put(module, path, function)


def _prefer_backend(router):
    """What the line says of the choice of backend."""
    from . import _patch as patch
    from . import _settings as settings
    try:
        module, function = targets.priorities()
    except targets.Declined as declined:
        return f"backend choice left as it is: {declined}"
    if patch.original(function) is function:
        setattr(module, targets.PRIORITIES, patch.prefer_patched(function, lambda: router.settings.rule == settings.OFF))
    return f"{targets.FLASHMLA} before {targets.FA3} where vLLM chooses and heads are padded"


def _start():
    """(Router or None, what was patched, {family: why not}, more words for the line, warnings)"""
    version = vllm_version()
    STATS.start["vllm"] = version
    names = [family.name for family in targets.FAMILIES]
    if version is None:
        return None, [], dict.fromkeys(names, "looked for vllm, found none"), [], []
    try:
        targets.check_version(version)
    except targets.Declined as declined:
        return None, [], dict.fromkeys(names, str(declined)), [], []
    try:
        from . import _settings as settings_module
        from ._route import Router
        settings, warnings = settings_module.read()
    except Exception as error:  # noqa: BLE001: the library is missing, or not for this machine
        return None, [], dict.fromkeys(names, f"looked for fewhead, found {type(error).__name__}: {error}"), [], []
    STATS.start["rule"] = str(settings)
    router = Router(settings)
    if settings.rule == settings_module.OFF:
        return router, [], dict.fromkeys(names, f"{settings_module.PREFILL} is off"), [str(settings)], warnings
    patched, why_not, words = [], {}, [str(settings)]
    for family in targets.FAMILIES:
        try:
            _patch_family(family, version, router)
            patched.append(family.name)
        except targets.Declined as declined:
            why_not[family.name] = str(declined)
    if "v32" in patched:
        words.append(_prefer_backend(router))
    if settings.check_every:
        words.append(f"one call in {settings.check_every} is compared with the engine's own kernel")
    if settings.capture:
        words.append(f"lists go to {settings.capture}")
    return router, patched, why_not, words, warnings


def _line(patched, why_not, words):
    models = {family.name: family.models for family in targets.FAMILIES}
    parts = [f"patched {', '.join(models[name] for name in patched) or 'nothing'}"] + words
    reasons = {}
    for name, reason in why_not.items():
        reasons.setdefault(reason, []).append(models[name])
    parts += [f"not patched {', '.join(names)}: {reason}" for reason, names in reasons.items()]
    return f"fewhead (vLLM {STATS.start['vllm']}): " + "; ".join(parts)


def register():
    """Patch what can be patched, and log one line that says what was, what was not and why, and the rule. Never raises. Doing it again does
    nothing."""
    global _registered
    if STATS.start["line"] is not None:
        return
    try:
        _registered, patched, why_not, words, warnings = _start()
        line = _line(patched, why_not, words)
    except Exception as error:  # noqa: BLE001: an engine without the plug-in is better than none
        patched, why_not, warnings = [], {}, []
        line = f"fewhead: patched nothing; {type(error).__name__}: {error}"
        LOG.debug("fewhead: error at start", exc_info=True)
    STATS.start.update(line=line, patched=patched, not_patched=why_not, warnings=warnings)
    for warning in warnings:
        LOG.warning("fewhead: %s", warning)
    (LOG.info if patched else LOG.warning)("%s", line)
