"""Source patches in an installed SGLang: seen, applied whole or not at all, remembered, taken back to the byte."""

from .ledger import default_state_folder
from .verbs import PatchRefused, apply, inspect, plan, revert

__all__ = ["PatchRefused", "apply", "default_state_folder", "inspect", "plan", "revert"]
