#!/usr/bin/python3
"""STAND-IN for somebody else on the GPU: `standin-gpu-hold GPU MIB` holds memory until it is killed."""

from __future__ import annotations

import signal
import sys

sys.path.append("/usr/lib/python3/dist-packages")
import standin_gpus  # type: ignore[import-not-found]

standin_gpus.claim(int(sys.argv[1]), int(sys.argv[2]), 0.3)
signal.pause()
