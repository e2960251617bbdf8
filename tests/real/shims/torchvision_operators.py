"""Lets PyPI's torchvision import beside a CPU build of torch: declares the operators it cannot load."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class DeclareBeforeImport(MetaPathFinder):
    """Finds nothing; acts once, at the moment torchvision is looked for."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name != "torchvision":
            return
        sys.meta_path.remove(self)
        import torch  # not at start: a .pth file runs in every interpreter of the venv

        if torch.version.cuda is None:
            library = torch.library.Library("torchvision", "FRAGMENT")
            for operator in ("nms", "qnms"):
                library.define(operator + SIGNATURE)
            self.library = library  # dropping it would take the declarations back


declaration = DeclareBeforeImport()
sys.meta_path.insert(0, declaration)
