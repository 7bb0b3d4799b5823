"""Kernels that nbval starts import the labs of this checkout, whatever is installed."""

import os
from pathlib import Path

ROOT = str(Path(__file__).parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
